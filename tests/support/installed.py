"""Checks of an installed wheel: ``python tests/support/installed.py NAME...``.

A name is `import`, `files` (save, load and plot) or a page. The code of a page runs as one session and must print the
output shown. The environment must have the wheel and its extras `plot` and `save`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from functools import partial
from pathlib import Path

from pages import assert_prints_what_it_shows, python_blocks

MOST_SHARE = 0.25
"""Maximum time of an import, relative to that of the packages below. Compiled and on an idle machine it is about .1."""
DEPENDENCIES = "joblib, numpy, scipy, sklearn, skorch, torch"
EXTRAS = ("matplotlib", "onnx", "pandas", "pyarrow", "safetensors")
"""Packages that few users need, some of which are installed here."""
IMPORT = f"""
import sys
from time import process_time
start = process_time()
import {DEPENDENCIES}
between, before = process_time(), set(sys.modules)
import sklearn_laplace
print(between - start, process_time() - between)
assert not (extras := set({EXTRAS}) & (set(sys.modules) - before)), f"import {{extras}} in the functions that need them"
"""


def check_import() -> None:
    """Processor time of importing the package after those that it needs, each time in a new process.

    The first run compiles. Other processes can only add to a time, hence the shortest of five.
    """
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    command = [sys.executable, "-c", IMPORT]
    runs = [list(map(float, subprocess.check_output(command, env=environment).split())) for _ in range(6)][1:]
    needed, own = map(min, zip(*runs, strict=True))
    print(f"import: {own:.2f} s beyond the {needed:.2f} s of its dependencies")
    assert own < MOST_SHARE * needed, f"{own:.2f} s to import; move imports that few users need into functions"


def check_files() -> None:
    """A fitted model gives the same predictions after a round trip through a file, and a picture."""
    from sklearn.datasets import load_diabetes

    from sklearn_laplace import LaplaceRegressor, load, save

    X, y = load_diabetes(return_X_y=True)
    model = LaplaceRegressor(n_members=1, random_state=0).fit(X[:100], y[:100])
    with tempfile.TemporaryDirectory() as name:
        path = Path(name) / "model.safetensors"
        save(model, path)
        assert (load(path).predict(X) == model.predict(X)).all()
        picture = path.with_suffix(".png")
        model.plot(X[100:], y[100:]).figure_.savefig(picture)
        assert picture.stat().st_size > 10_000


def check_page(name: str) -> None:
    """The code of a page, as one session."""
    assert_prints_what_it_shows("\n".join(python_blocks(Path(name).read_text(encoding="utf-8"))), name)


if __name__ == "__main__":
    import sklearn_laplace

    assert Path(sklearn_laplace.__file__).is_relative_to(sys.prefix), f"{sklearn_laplace.__file__} is not installed"
    for name in sys.argv[1:]:
        start = time.perf_counter()
        {"import": check_import, "files": check_files}.get(name, partial(check_page, name))()
        print(f"{name}: passed in {time.perf_counter() - start:.0f} s")
