"""Trainings that tests share: ``memory=trainings.MEMORY`` trains nets of equal rows and options once in a process.

For tests of what follows a training: structures, subsets, priors, predictives. Not for tests of the training itself,
or of its reproducibility. That ``memory`` changes no result is a test of ``test_searches.py``.
"""

from __future__ import annotations

import tempfile

FOLDER = tempfile.TemporaryDirectory(prefix="trainings", ignore_cleanup_errors=True)
MEMORY = FOLDER.name
