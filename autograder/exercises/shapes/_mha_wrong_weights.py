"""Multi-head attention whose scores, softmax or masks go wrong: (id, program), several spellings where they differ."""
from torch.nn import functional as F

from ...programs import Programs
from ._mha_base import Base

PROGRAMS = Programs()
wrong, WRONGS = PROGRAMS.wrong, PROGRAMS.wrongs


@wrong("scale-by-model-width")
class ScaleByModelWidth(Base):
    """Divide by √D, not √M."""

    def scale(self):
        return self.d_model ** -0.5


@wrong("scale-by-head-count")
class ScaleByHeadCount(Base):
    """Divide by √D, not √H."""

    def scale(self):
        return self.num_heads ** -0.5


@wrong("scale-multiplied")
class ScaleMultiplied(Base):
    """Scores were multiplied by √D."""

    def scale(self):
        return self.width ** 0.5


@wrong("scale-missing")
class ScaleMissing(Base):
    """Scores were not scaled."""

    def scale(self):
        return 1.0


@wrong("softmax-over-queries")
class SoftmaxOverQueries(Base):
    """Each query must distribute over keys; here each key distributes over queries."""

    def normalise(self, scores):
        return scores.softmax(-2)


@wrong("softmax-over-heads")
class SoftmaxOverHeads(Base):
    """Heads compete for a pair; each head needs its own distribution."""

    def normalise(self, scores):
        return scores.softmax(1)


@wrong("softmax-missing")
class SoftmaxMissing(Base):
    """Raw scores mixed the values."""

    def normalise(self, scores):
        return scores


@wrong("softmax-missing")
class SoftmaxMissingBlockedZero(SoftmaxMissing):
    def hide(self, scores, visible):
        return scores.masked_fill(~visible, 0.0)


@wrong("polarity-inverted")
class PolarityInverted(Base):
    """True must mean visible; `nn.MultiheadAttention` uses True for blocked."""

    def hide(self, scores, visible):
        return scores.masked_fill(visible, float("-inf"))


@wrong("float-mask-added")
class FloatMaskAdded(Base):
    """A 0/1 mask was added to the scores: it hides nothing."""

    def hide(self, scores, visible):
        return scores + visible.to(scores.dtype)


@wrong("fill-tiny-positive")
class FillTinyPositive(Base):
    """1e-9 is almost zero, not minus infinity."""

    def hide(self, scores, visible):
        return scores.masked_fill(~visible, 1e-9)


@wrong("fill-minus-1e4")
class FillMinusTenThousand(Base):
    """A finite fill loses to very negative visible scores and turns an all-blocked row uniform."""

    def hide(self, scores, visible):
        return scores.masked_fill(~visible, -1e4)


@wrong("fill-overflows-half")
class FillOverflowsHalf(Base):
    """−1e5 and −1e9 do not fit in float16; torch refuses them."""

    def hide(self, scores, visible):
        return scores.masked_fill(~visible, -1e9)


@wrong("mask-after-softmax")
class MaskAfterSoftmax(Base):
    """Rows no longer sum to one."""

    def weigh(self, scores, visible):
        weights = self.normalise(scores)
        return weights if visible is None else weights * visible


@wrong("mask-after-softmax")
class MaskAfterSoftmaxUnseen(Base):
    def forward(self, query, key, value, visible=None):
        self.check(query, key, value, visible)
        q, k, v = self.heads(query, key, value)
        weights = self.normalise(q @ k.mT * self.scale())
        return self.answer(self.merge((weights if visible is None else weights * visible) @ v), weights)


@wrong("score-times-mask")
class ScoreTimesMask(Base):
    """A blocked score became 0, which still earns weight."""

    def hide(self, scores, visible):
        return scores * visible


@wrong("mask-batch-on-heads")
class MaskBatchOnHeads(Base):
    """A [B,T,S] mask was broadcast with its batch on the head axis; silent when B = H."""

    def check(self, query, key, value, visible):
        four = visible[None] if visible is not None and visible.dim() == 3 else visible
        super().check(query, key, value, four)


class Transposed(Base):
    """The mask with its last two axes swapped: `which` masks, and whether rows are checked before or after."""

    which, checked_after = "padding", False

    def check(self, query, key, value, visible):
        super().check(query, key, value, self.turned(visible) if self.checked_after else visible)

    def turned(self, visible):
        skip = {"padding": lambda: visible.shape[-2] > 1, "four axes": lambda: visible.dim() != 4, "all": lambda: False}
        if visible is None or visible.dim() == 3 or skip[self.which]():
            return visible
        return visible.transpose(-1, -2)

    def hide(self, scores, visible):
        return super().hide(scores, self.turned(visible))


@wrong("padding-on-query-axis")
class PaddingOnQueryAxis(Transposed):
    """The padding mask was transposed onto the query axis."""


for _which, _after in (("padding", True), ("four axes", False), ("four axes", True), ("all", False), ("all", True)):
    _title = f"Transposed{_which.title().replace(' ', '')}{'Late' if _after else ''}"
    wrong("padding-on-query-axis")(type(_title, (Transposed,), {"which": _which, "checked_after": _after}))


@wrong("mask-made-square")
class MaskMadeSquare(Base):
    """The mask was reshaped to [B,1,T,T]; it is right only when T = S."""

    def hide(self, scores, visible):
        batch, _, queries, _ = scores.shape
        return super().hide(scores, visible.reshape(batch, 1, queries, queries))


@wrong("mask-made-square")
class MaskOfFourAxesMadeSquare(MaskMadeSquare):
    def hide(self, scores, visible):
        return super().hide(scores, visible) if visible.dim() == 4 else Base.hide(self, scores, visible)


@wrong("mask-made-square")
class MaskExpandedSquare(Base):
    def hide(self, scores, visible):
        batch, _, queries, _ = scores.shape
        return super().hide(scores, visible.expand(batch, 1, queries, queries))


@wrong("all-masked-row-nan")
class AllMaskedRowNan(Base):
    """A row without a visible key gave NaN; refuse it."""

    def check(self, query, key, value, visible):
        super().check(query, key, value, visible if visible is not None and visible.dim() == 3 else None)


@wrong("all-masked-row-nan")
class AllMaskedRowNanBySdpa(AllMaskedRowNan):
    def forward(self, query, key, value, visible=None):
        self.check(query, key, value, visible)
        q, k, v = self.heads(query, key, value)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=visible)
        return self.o_proj(self.merge(mixed)), self.weigh(q @ k.mT * self.scale(), visible)
