"""Named settings of Clip_B and Clip_V: what a control that names a preset means where it says nothing itself."""

from __future__ import annotations

from collections.abc import Mapping

from isentrope_wire.errors import ControlError
from isentrope_wire.method_parameters import Method

PRESETS: Mapping[tuple[Method, str], Mapping[str, object]] = {
    (Method.CLIP_B, "paper"): {"mu_low": 2.5, "scope": "negative"},
    (Method.CLIP_V, "paper"): {"mu_low": 8.5, "scope": "negative"},
    (Method.CLIP_B, "trinity"): {"mu_low": 2.5, "scope": "negative", "parameters": {"denominator": "shrink"}},
    (Method.CLIP_V, "trinity"): {
        "mu_low": 8.5,
        "scope": "negative",
        "parameters": {"max_fraction": 1e-4, "denominator": "shrink"},
    },
}
"""The lower tail of negative samples alone.

`paper`: eq. 15 and 16 of arXiv:2602.03392 as they are printed, a mask on the token's loss whose denominator stays, with
the µ of its authors' code. `trinity`: what that code (Trinity-RFT) does: the response mask is overwritten, so the
denominator shrinks, and Clip_V leaves out at most one token in ten thousand.
"""


_PRESET_NAMES = ", ".join(dict.fromkeys(name for _, name in PRESETS))


def preset(method: Method, name: object) -> Mapping[str, object]:
    """The fields of a control that the preset stands for.

    Raises:
        ControlError: the method has no preset of this name.
    """
    found = PRESETS.get((method, str(name)))
    if found is None:
        known = ", ".join(preset_name for preset_method, preset_name in PRESETS if preset_method == method)
        raise ControlError(
            f"parameters.preset must be one of {known} with method {method}, got {name!r}."
            if known
            else f"parameters.preset goes with clip_b and clip_v ({_PRESET_NAMES}), got {name!r} with method {method}."
        )
    return found
