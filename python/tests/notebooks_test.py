"""The notebooks run as they are, draw their plots, and the Chinese one runs the same code."""
import pathlib

import nbclient
import nbformat
import pytest

FOLDER = pathlib.Path(__file__).parents[2] / "examples" / "notebooks"
NAMES = sorted(path.name for path in FOLDER.glob("*.ipynb"))


def read(name):
    return nbformat.read(FOLDER / name, as_version=4)


def code_of(notebook):
    return [cell.source for cell in notebook.cells if cell.cell_type == "code"]


def test_each_has_a_twin_with_the_same_code():
    english = [name for name in NAMES if not name.endswith(".zh-CN.ipynb")]
    assert english
    assert len(NAMES) == 2 * len(english)
    for name in english:
        twin = read(name.replace(".ipynb", ".zh-CN.ipynb"))
        assert code_of(twin) == code_of(read(name))
        assert len(twin.cells) == len(read(name).cells)


@pytest.mark.parametrize("name", [name for name in NAMES if not name.endswith(".zh-CN.ipynb")])
def test_it_runs_and_draws(name):
    notebook = read(name)
    nbclient.NotebookClient(notebook, timeout=300, resources={"metadata": {"path": FOLDER}}).execute()
    plots = 0
    for cell in notebook.cells:
        outputs = cell.get("outputs", [])
        plots += sum("image/png" in output.get("data", {}) for output in outputs)
        assert not [output for output in outputs if output.get("name") == "stderr"]
    assert plots == sum(code.count("plt.show()") for code in code_of(notebook)) > 0
