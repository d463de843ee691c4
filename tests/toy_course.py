"""A course of one session with two exercises, small enough to read in a test."""
from types import SimpleNamespace

from autograder.exercise import Exercise
from autograder.texts import exercise_line

SOLUTIONS = '''"""The toy session."""
from torch import Tensor, nn


def double(x: Tensor, times: int = 1) -> Tensor:
    """Twice x."""
    ### BEGIN SOLUTION
    for _ in range(times):
        x = 2 * x
    return x
    ### END SOLUTION


class Twice(nn.Module):
    """A module."""

    def __init__(self, width: int):
        super().__init__()
        ### BEGIN SOLUTION
        self.width = width
        ### END SOLUTION

    def forward(self, x: Tensor) -> Tensor:
        """Twice x."""
        ### BEGIN SOLUTION
        return 2 * x
        ### END SOLUTION
'''


def exercise(name, points):
    made = Exercise(name, step=1, points=points, minutes=4, difficulty=2, importance=3, summary="", hints=("", "", ""))
    made.session, made.module = "00-toy", "toy"
    return made


DOUBLE, TWICE = exercise("double", 1), exercise("Twice", 3)
SESSION = SimpleNamespace(id="00-toy", number="00", module="toy", modules=("toy",), title="Toy", minutes=5,
                          exercises=(DOUBLE, TWICE))
TEXT = f"""---
kernelspec:
  name: python3
  display_name: Python 3 (ipykernel)
---

# Toy

A row, doubled. **[Derivation]** ![Two cells](figures/two.svg)

```{{code-cell}}
from autograder.notebook import check, predict
```

```{{code-cell}}
predict("toy-first", None)
```

{exercise_line(DOUBLE)}

```{{code-cell}}
check("double")
```

{exercise_line(TWICE)}

```{{code-cell}}
check("Twice")
```

+++ {{"mha": {{"page": true}}}}

Only for readers of the page.

+++ {{"mha": {{"explain": "00"}}}}

*Your answer:*
"""


def write_course(root, text=TEXT, solutions=SOLUTIONS):
    """The course as files under `root`."""
    (root / "course" / "figures").mkdir(parents=True, exist_ok=True)
    (root / "solutions").mkdir(exist_ok=True)
    (root / "course" / "figures" / "two.svg").write_text("<svg/>")
    (root / "course" / "00-toy.md").write_text(text, encoding="utf-8")
    (root / "solutions" / "toy.py").write_text(solutions, encoding="utf-8")
    return root
