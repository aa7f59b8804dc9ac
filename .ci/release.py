"""Holds what a release says of itself against the version: the tag, the citation, the change log.

    python .ci/release.py [TAG]

The version stands in the sources, not in the tag alone: then a checkout, an archive without git and an installed wheel
tell the same one, and the same sources give the same wheel. Without an argument the tag is that of the last commit.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path


def disagreements(root: Path, tag: str) -> list[str]:
    """Return a sentence for each thing that does not agree with the version of the sources."""
    module = (root / "atomr_trio" / "__init__.py").read_text(encoding="utf-8")
    [version] = re.findall(r'^__version__ = "(.+)"$', module, re.MULTILINE)
    found = []
    if tag != f"v{version}":
        found.append(f"the tag is {tag or 'missing'}; the version of the sources is {version}: tag it v{version}")
    if f"\nversion: {version}\n" not in (root / "CITATION.cff").read_text(encoding="utf-8"):
        found.append(f"CITATION.cff does not name version {version}")
    changes = (root / "CHANGELOG.md").read_text(encoding="utf-8")
    if not re.search(rf"^## {re.escape(version)}\b", changes, re.MULTILINE):
        found.append(f"CHANGELOG.md has no section {version}: run make changelog RELEASE=yes")
    left = sorted(each.name for each in (root / "changes").glob("*.*.md"))
    if left:
        found.append(f"changes/ has fragments that no section has: {', '.join(left)}: run make changelog RELEASE=yes")
    return found


def main() -> int:
    root = Path(__file__).parents[1]
    if len(sys.argv) > 1:
        tag = sys.argv[1]
    else:
        command = ["git", "-C", str(root), "describe", "--exact-match", "--tags", "HEAD"]
        tag = subprocess.run(command, capture_output=True, text=True).stdout.strip()
    found = disagreements(root, tag)
    print(*found, sep="\n") if found else print(f"release {tag}: tag, version, citation and change log agree")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
