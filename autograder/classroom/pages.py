"""Pages that a teacher opens must not run what a student wrote: formgrader shows them inside the teacher's Jupyter."""
from __future__ import annotations

import re
from functools import cache

from bleach import Cleaner
from bleach.css_sanitizer import CSSSanitizer
from jinja2 import pass_context
from nbconvert.exporters import HTMLExporter

TAGS = frozenset((
    "a", "abbr", "b", "blockquote", "br", "caption", "code", "col", "colgroup", "dd", "del", "details", "div", "dl",
    "dt", "em", "figcaption", "figure", "h1", "h2", "h3", "h4", "h5", "h6", "hr", "i", "img", "ins", "kbd", "li",
    "mark", "ol", "p", "pre", "q", "s", "small", "span", "strong", "sub", "summary", "sup", "table", "tbody", "td",
    "tfoot", "th", "thead", "tr", "u", "ul",
))
PLAIN = frozenset((
    "alt", "class", "colspan", "height", "id", "lang", "open", "rowspan", "scope", "start", "style", "title",
    "width",
))
_PICTURE = re.compile(r"data:image/(png|jpeg|gif|webp|svg\+xml)[;,]|(?![a-z][a-z0-9+.-]*:)", re.IGNORECASE)
_LINK = re.compile(r"(https?|mailto):|#", re.IGNORECASE)


def _allowed(tag: str, name: str, value: str) -> bool:
    """Pictures that need no network and cannot act, links that lead away, and attributes that only describe."""
    if name == "src":
        return tag == "img" and bool(_PICTURE.match(value))
    if name == "href":
        return tag == "a" and bool(_LINK.match(value))
    return name in PLAIN


@cache
def _cleaner() -> Cleaner:
    return Cleaner(tags=TAGS, attributes=_allowed, protocols={"http", "https", "mailto", "data"}, strip_comments=True,
                   css_sanitizer=CSSSanitizer(allowed_css_properties=["text-align", "color", "background-color",
                                                                      "font-weight", "border", "padding", "margin"]))


@cache
def _exporter() -> HTMLExporter:
    return HTMLExporter()


@pass_context
def safe_markdown(context, source: str) -> str:
    """nbconvert's `markdown2html` filter; whatever could run, load or pose as the page is shown as text or left out."""
    return _cleaner().clean(_exporter().markdown2html(context, source))
