"""Read a run from the server: as a pandas DataFrame, as a diagnosis, and over plain REST.

    isentrope up                                # in another terminal, with a run on it
    pip install pandas
    python examples/rest_and_pandas.py          # the newest run, or: python examples/... RUN

Address and token are those of the command line. Elsewhere set ISENTROPE_URL and ISENTROPE_TOKEN;
`isentrope token create --scope read` makes a token.
"""

from __future__ import annotations

import argparse
import os

import httpx
import pandas

import isentrope

NAMES = ["entropy/mean", "reward/mean", "entropy/observed_change", "clip/fraction"]


def metrics_of(client: isentrope.Client, run_id: str) -> pandas.DataFrame:
    """One row a step, one column a metric; missing where it was not measured."""
    return pandas.DataFrame(client.metrics(run_id, NAMES)).set_index("step").astype(float)


def entropies_over_rest(url: str, token: str, run_id: str) -> pandas.Series:
    """The same of one metric without the client, as a program in any language would ask."""
    answer = httpx.get(
        f"{url}/api/v1/runs/{run_id}/metrics/series",
        params={"name": "entropy/mean", "points": 50},
        headers={"Authorization": f"Bearer {token}"},
    )
    answer.raise_for_status()
    columns = answer.json()["series"]["entropy/mean"]
    return pandas.Series(columns["value"], index=columns["step"], name="entropy/mean")


def main() -> None:
    parser = argparse.ArgumentParser(description="Read a run from the server.")
    parser.add_argument("run", nargs="?", help="its id; default: the newest run")
    arguments = parser.parse_args()
    with isentrope.Client() as client:
        newest = client.runs(limit=1)
        if not newest:
            raise SystemExit(
                f"No run has reported to {client.url} yet: run own_grpo_loop.py first."
            )
        run_id = arguments.run or newest[0].id
        frame = metrics_of(client, run_id)
        print(frame.describe().loc[["count", "mean", "min", "max"]])
        print(frame["entropy/mean"].rolling(5).mean().tail())

        diagnosis = client.diagnosis(run_id)
        print(f"{diagnosis.level}: {diagnosis.message}")
        if diagnosis.suggestion is not None:
            print(f"suggested: {diagnosis.suggestion.control}")
            # To push it: client.set_control(run_id, **diagnosis.suggestion.control)

        token = os.environ.get("ISENTROPE_TOKEN")
        if token:
            print(entropies_over_rest(client.url, token, run_id).tail())


if __name__ == "__main__":
    main()
