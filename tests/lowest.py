"""Print the lowest version that is declared of every dependency, as constraints for pip.

    python -m tests.lowest > lowest.txt

All but torch and torchvision, which ``constraints.txt`` names: most machines can have one build of them, and a lower
one would come with gigabytes for a GPU.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]


def lowest(requirements: list[str]) -> list[str]:
    """Return ``name==version`` of each ``name>=version``."""
    found = (re.match(r"([A-Za-z0-9_.-]+)>=([0-9.]+)", requirement) for requirement in requirements)
    return [f"{each[1]}=={each[2]}" for each in found if each and each[1] not in ("torch", "torchvision")]


def main() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    print((ROOT / "constraints.txt").read_text(encoding="utf-8"), end="")
    print("\n".join(lowest(project["dependencies"])))


if __name__ == "__main__":
    main()
