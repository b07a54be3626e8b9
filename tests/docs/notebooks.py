"""The notebooks as pages, with the outputs of the run that they keep. Needs nbconvert (extra docs)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

__all__ = ["FOLDER", "NOTEBOOKS", "files_of"]

_ROOT: Final = Path(__file__).resolve().parents[2]
FOLDER: Final = _ROOT / "docs/tutorials/notebooks"
NOTEBOOKS: Final = sorted(path.stem for path in (_ROOT / "notebooks").glob("*.ipynb"))
_SHOWN: Final = ["image/png", "text/plain"]
_OBJECT: Final = re.compile(r"^(<[\w.]+.*>|\w+\(children=.*)$", re.DOTALL)
"""Text of an object that only a running notebook displays."""
_INTRODUCTION: Final = """\

*This page is the notebook `notebooks/{name}.ipynb` with the outputs of a run. `make notebook` opens it in JupyterLab.*
"""


def files_of(name: str) -> dict[Path, bytes]:
    """Return the page of a notebook and its images."""
    import nbformat
    from nbconvert import MarkdownExporter
    from traitlets.config import Config

    notebook: Any = nbformat.read(_ROOT / f"notebooks/{name}.ipynb", as_version=4)
    for cell in notebook.cells:
        if cell.cell_type == "code":
            cell.outputs = [one for one in cell.outputs if not _OBJECT.match(_text(one))]
    settings = Config()
    settings.NbConvertBase.display_data_priority = _SHOWN
    text, resources = MarkdownExporter(config=settings).from_notebook_node(
        notebook, {"output_files_dir": name, "unique_key": "output"}
    )
    # Notebooks link from their own folder.
    text = text.replace("](../docs/", "](../../").replace("\r\n", "\n")
    text = re.sub(r"\x1b\[[0-9;]*m", "", text)
    title, _, rest = text.strip().partition("\n")
    page = f"{title}\n{_INTRODUCTION.format(name=name)}{rest.rstrip()}\n"
    page = re.sub(r"[ \t]+$", "", page, flags=re.MULTILINE)
    page = re.sub(r"!\[png\]", "![chart of the output]", page)
    return {FOLDER / f"{name}.md": page.encode()} | {FOLDER / one: data for one, data in resources["outputs"].items()}


def _text(output: Any) -> str:
    data = output.get("data", {})
    return "" if "image/png" in data else str(data.get("text/plain", ""))


def write() -> None:
    """Write all pages."""
    for name in NOTEBOOKS:
        for path, content in files_of(name).items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)


if __name__ == "__main__":
    write()
