"""The checks beside two peers, on the peers' own runs: found, first step, other kinds.

    python -m venv peers && peers/bin/pip install rldoctor==0.2.0 rlprobe==0.1.0
    peers/bin/python tests/benchmarks/checks_beside_peers.py generate runs --seed 2000 --seeds 10
    python tests/benchmarks/checks_beside_peers.py judge runs --csv peers.csv

`generate` writes the runs of 300 steps and what the peers say of them (rldoctor's live monitor
every 25 steps; rlprobe's checks of each prefix, every 10; its failures begin at step 150). `judge`
reads them by `isentrope diagnose`."""

from __future__ import annotations

import argparse
import importlib
import json
import tempfile
from collections import Counter, defaultdict
from pathlib import Path
from statistics import median
from typing import Any

STEPS = 300
KINDS = {
    "entropy_collapse": "collapse",
    "saturated_groups": "zero_advantage",
    "too_hard": "zero_advantage",
    "reward_hacking": "reward_hacking",
    "length_hacking": "length",
    "truncation": "truncation",
    "kl_blowup": "kl",
    "clip_saturation": "clip_saturation",
    "grad_spikes": "gradient",
    "plateau": "plateau",
    "format_domination": "reward_parts",
    "reward_hack_length": "length",
    "format_gaming": "reward_parts",
    "degenerate_groups": "zero_advantage",
    "adv_collapse": "zero_advantage",
    "value_divergence": "value",
    "grad_pathology": "gradient",
    "truncation_starve": "truncation",
    "repetition_spiral": "repetition",
    "reward_std_death": "zero_advantage",
    "ref_drift_asymmetry": "kl",
    "throughput_rot": "throughput",
}


def generate(folder: Path, first: int, seeds: int) -> None:
    """Write `PEER-SCENARIO-SEED.jsonl`, and `peers.json`: what each peer said, and when."""
    simulate, live = (importlib.import_module(f"rl_doctor.{part}") for part in ("simulate", "live"))
    synth = importlib.import_module("rlprobe.testing.synth")
    engine = importlib.import_module("rlprobe.doctor.engine")
    view_of = importlib.import_module("rlprobe.doctor.runview").RunView
    reader_of = importlib.import_module("rlprobe.storage").RunReader
    folder.mkdir(parents=True, exist_ok=True)
    said: dict[str, dict[str, int]] = defaultdict(dict)
    for seed in range(first, first + seeds):
        for scenario in simulate.SCENARIOS:
            name = f"rldoctor-{scenario}-{seed}"
            rows, config = simulate.simulate(scenario, n_steps=STEPS, seed=seed)
            write(folder / f"{name}.jsonl", rows)
            monitor = live.LiveMonitor(config=config, on_finding=lambda finding: None)
            for row in rows:
                for finding in monitor.log(row, step=row["step"]):
                    said[name].setdefault(finding.detector, row["step"])
        for scenario in (None, *synth.PATHOLOGIES):
            name = f"rlprobe-{scenario or 'healthy'}-{seed}"
            with tempfile.TemporaryDirectory() as run:
                synth.generate_run(run, scenario, n_steps=STEPS, seed=seed)
                reader = reader_of(run)
                steps, samples = list(reader.steps()), list(reader.samples())
            write(folder / f"{name}.jsonl", [step.model_dump(exclude_none=True) for step in steps])
            for end in range(30, STEPS + 1, 10):
                known = [sample for sample in samples if sample.step < end]
                view = view_of(reader.manifest, steps[:end], samples_provider=lambda k=known: k)
                for finding in engine.diagnose_view(view):
                    said[name].setdefault(finding.signature_id, end - 1)
    (folder / "peers.json").write_text(json.dumps(said))


def write(path: Path, rows: list[dict[str, Any]]) -> None:
    path.write_text("\n".join(map(json.dumps, rows)))


def judge(folder: Path, table: Path | None) -> None:
    """Print a table of each scenario: runs found, first step, other kinds, what peers said. `table`
    gets it as CSV, with the peer's own kind by itself."""
    diagnosis_of = importlib.import_module("isentrope.cli.diagnose").diagnosis_of
    read_log = importlib.import_module("isentrope.cli.log_files").read_log
    theirs: dict[str, dict[str, int]] = json.loads((folder / "peers.json").read_text())
    runs = defaultdict(list)
    for path in sorted(folder.glob("*.jsonl")):
        peer, scenario, _ = path.stem.split("-")
        ours = {one.kind: one.step for one in diagnosis_of(read_log(path)).findings}
        runs[peer, scenario].append((ours, theirs.get(path.stem, {})))
    print("| scenario | found | median first step | other kinds | peer's first words, median |")
    lines = [["peer", "scenario", "runs", "found", "step", "others", "of_peer", "its_step"]]
    for (peer, scenario), found in runs.items():
        kind = KINDS.get(scenario, "")
        steps = [ours[kind] for ours, _ in found if kind in ours]
        others = Counter(name for ours, _ in found for name in ours if name != kind)
        words = Counter(name for _, peers in found for name in peers)
        first = {name: median(peers[name] for _, peers in found if name in peers) for name in words}
        step = f"{median(steps):g}" if steps else "-"
        # A failure's own kind is that which the peer named in most of its runs.
        own, of_peer = words.most_common(1)[0] if words else ("", 0)
        counts = len(found), len(steps), step, sum(others.values()), of_peer, first.get(own, "-")
        lines.append([peer, scenario, *map(str, counts)])
        print(
            f"| {peer} {scenario} | {len(steps)}/{len(found)} | {step} | {dict(others)} | {first} |"
        )
    if table is not None:
        table.write_text("".join(f"{','.join(line)}\n" for line in lines))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=["generate", "judge"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--seed", type=int, default=2_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--csv", type=Path)
    given = parser.parse_args()
    if given.what == "generate":
        generate(given.folder, given.seed, given.seeds)
    else:
        judge(given.folder, given.csv)
