"""Shapes in signatures are checked under pytest, and cost nothing outside of it."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch
from jaxtyping import TypeCheckError

from isentrope.methods.gate import gated_logprobs
from isentrope.scores import TokenScores
from isentrope.statistics.moments import device_moments


def test_a_wrong_shape_or_type_is_refused() -> None:
    three, four = torch.zeros(3), torch.zeros(4)
    with pytest.raises(TypeCheckError, match="factors"):
        gated_logprobs(three, four)
    with pytest.raises(TypeCheckError, match="valid"):
        device_moments(three, three)
    with pytest.raises(TypeCheckError, match="entropies"):
        TokenScores(three, four, three, three, three)


@pytest.mark.slow
def test_no_shape_library_is_imported_outside_of_tests() -> None:
    code = (
        "import sys, isentrope; isentrope.Probe; print({'jaxtyping', 'beartype'} &"
        " set(sys.modules))"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "set()"
