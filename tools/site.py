"""Builds the site: docs/, the README as its first page, and what they link to elsewhere in the repository.

    python -m tools.site SITE          also: make docs
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from perf.rows import DOCS, ROOT

PAGES = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}  # of the root
MOVED = {"../src/scorelens/zoo/": "zoo/", "../zoo/": "zoo/", "../notebooks/": "notebooks/", "notebooks/": "notebooks/",
         "../README.md": "index.md", "../CONTRIBUTING.md": "contributing.md", "../CHANGELOG.md": "changelog.md",
         "docs/": "", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
CAPTION = re.compile(r"^(!\[.*\)\n\n\*[^*]+\*)$", re.MULTILINE)  # a paragraph in italics below a picture
LINK = re.compile(r"(?<=\]\()(?!https?:|#)([^)\s]+)(?=\))")


def put_together(folder: Path) -> None:
    """All pages in one folder, with links that hold there."""
    shutil.copytree(DOCS, folder, dirs_exist_ok=True)
    for name, page in PAGES.items():
        (folder / page).write_text((ROOT / name).read_text())
    for zoo in (ROOT / "src" / "scorelens" / "zoo", ROOT / "zoo"):
        for card in zoo.glob("*/card.json"):
            shutil.copytree(card.parent, folder / "zoo" / card.parent.name, ignore=shutil.ignore_patterns(
                "unet", "transformer", "scheduler", "*.json"))
    shutil.copytree(ROOT / "notebooks", folder / "notebooks")
    for name in ("LICENSE", "CITATION.cff", "SECURITY.md"):
        shutil.copy(ROOT / name, folder / name)
    for page in folder.glob("*.md"):
        text = CAPTION.sub("\\1\n{ .caption }", page.read_text())
        page.write_text(LINK.sub(lambda match: moved(match[1]), text))


def moved(link: str) -> str:
    """Where a link of the repository points to on the site."""
    start = next((start for start in MOVED if link.startswith(start)), None)
    return link if start is None else MOVED[start] + link.removeprefix(start)


def build(site: Path) -> int:
    """Build the site; a dead link or anchor is an error."""
    with tempfile.TemporaryDirectory() as folder:
        put_together(Path(folder))
        return subprocess.run([sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--config-file",
                               str(ROOT / "mkdocs.yml"), "--site-dir", str(site.resolve())],
                              env={**os.environ, "SCORELENS_PAGES": folder, "NO_MKDOCS_2_WARNING": "1"}).returncode


if __name__ == "__main__":
    sys.exit(build(Path(sys.argv[1])))
