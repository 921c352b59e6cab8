"""The mutations in ``tests/support/mutate.py`` match the current code; that script runs them."""

import mutate
import pytest


@pytest.mark.parametrize("mutation", mutate.MUTATIONS, ids=lambda mutation: mutation.what)
def test_a_mutation_changes_the_code_and_names_tests(mutation):
    text = (mutate.ROOT / "sklearn_laplace" / mutation.file).read_text(encoding="utf-8")
    assert mutation.right in text
    assert mutation.right != mutation.wrong
    for name in mutation.tests.split():
        assert len(list(mutate.ROOT.glob(f"tests/*/test_{name}.py"))) == 1, name
