"""Fig. 1: which tokens move the entropy, shown by leaving out those on one side of S* = 0."""

from __future__ import annotations

from collections.abc import Mapping

from isentrope_papers.drawing import Picture, courses, panels
from isentrope_papers.evidence import ends_above
from isentrope_papers.figure import Check, Figure, Results
from isentrope_papers.settings import Plan, RunSettings
from isentrope_wire.metrics import ENTROPY_MEAN, REWARD_MEAN

BASELINE = "all tokens"
SAMPLES = {"positive": "positive samples (A > 0)", "negative": "negative samples (A < 0)"}


def _label(scope: str, sign: str) -> str:
    return f"{scope}: without S* {'>' if sign == 'positive' else '<'} 0"


class MaskedSigns(Figure):
    name = "dynamics-1"
    number = "Fig. 1 a-d"
    title = "masking tokens by the sign of S*"
    claim = (
        "On positive samples the tokens with S* > 0 lower the entropy and those with S* < 0 raise"
        " it, on negative samples the other way round: leaving one kind out moves the entropy to"
        " the other side."
    )

    def arms(self, plan: Plan) -> Mapping[str, RunSettings]:
        return {BASELINE: plan.run()} | {
            _label(scope, sign): plan.run(
                {
                    "method": "score_sign",
                    "scope": scope,
                    "parameters": {"sign": sign, "action": "mask"},
                }
            )
            for scope in SAMPLES
            for sign in ("positive", "negative")
        }

    def draw(self, results: Results) -> Picture:
        found = self.finished(results)
        picture, axes = panels(2, 2)
        for column, (scope, title) in enumerate(SAMPLES.items()):
            labels = (BASELINE, _label(scope, "positive"), _label(scope, "negative"))
            shown = {label.split(": ")[-1]: found[label] for label in labels}
            for row, (metric, unit) in enumerate(
                ((ENTROPY_MEAN, "entropy, nats"), (REWARD_MEAN, "reward"))
            ):
                courses(axes[2 * row + column], shown, metric, unit)
                axes[2 * row + column].set_title(f"({'abcd'[2 * row + column]}) {title}")
            axes[column].legend()
        return picture

    def checks(self, results: Results) -> list[Check]:
        found = self.finished(results)
        checks = []
        reason = (
            "Leaving tokens out changes what is learned, too, and the answers then sampled; and to"
            " first order the change has the sign of S* − E[S], not of S*."
        )
        for scope, raises, lowers in (
            ("positive", "positive", "negative"),
            ("negative", "negative", "positive"),
        ):
            keeps, loses = _label(scope, raises), _label(scope, lowers)
            checks += [
                ends_above(
                    f"{keeps} ends higher than {BASELINE}",
                    found[keeps],
                    found[BASELINE],
                    reason=reason,
                ),
                ends_above(
                    f"{loses} ends lower than {BASELINE}",
                    found[BASELINE],
                    found[loses],
                    reason=reason,
                ),
            ]
        return checks
