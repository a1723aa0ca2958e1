"""Exports the model of a run: as a folder, merged, to the hub, or by llama.cpp's converter to a GGUF file."""

import functools
import glob
import os
import shutil
import signal
import stat
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import psutil

from fleetune.contracts.checkpoint_path import ADAPTER, CARD
from fleetune.errors import Refused, TryAgain, first_line
from fleetune.filesystem import rename_durably
from fleetune.launching.job import SILENT_CODE, describe_exit
from fleetune.launching.life_watch import USUAL, LifeWatch
from flows.hand_over.model_card import model_card
from flows.hand_over.trained_run import TrainedRun, tell

CONVERTER = "convert_hf_to_gguf.py"
"""Of llama.cpp; not on the package index."""
BASE = "base"
LOADED = (
    *("config.json", "generation_config.json", "model.safetensors*", "model-*-of-*.safetensors", "pytorch_model.bin*"),
    *("pytorch_model-*-of-*.bin", "tf_model.h5", "flax_model.msgpack", "adapter_config.json", "adapter_model.*"),
    *("tokenizer*", "added_tokens.json", "special_tokens_map.json", "vocab.*", "merges.txt", "spiece.model"),
    *("sentencepiece*.model", "source.spm", "target.spm", "bpe.codes", "chat_template.*", "*processor_config.json"),
    "additional_chat_templates/*",
)
"""Names of what transformers and PEFT look for at the top of a repository: models, adapters, tokenizers, processors."""


def export(found: TrainedRun, target: Path, merge: bool, note: Callable[[str], None] = tell) -> Path:
    """Write the model folder, or the adapter's, with a model card, into `target` and return it.

    merge: an adapter's weights are added to those of its base, so that transformers loads the folder alone. note: told
    what cannot be checked. Refused for a target that holds something, and for an adapter without a base that others
    could load. Whatever fails leaves nothing.
    """
    from fleetune.evaluation.trained_model import result_folder, write_merged

    result = result_folder(found.checkpoint)
    adapter = result.name == ADAPTER and not merge
    if adapter and (found.checkpoint / BASE).exists():
        raise Refused(
            f"run {found.run.id}: its adapter belongs to random weights, which nobody else has; give --merge, which "
            "writes both as one model"
        )
    with _atomic(target) as part:
        if merge:
            write_merged(found.checkpoint, found.model, found.run.config.model, part, note)
        else:
            shutil.copytree(result, part, dirs_exist_ok=True, symlinks=True)
        loading = _loading(result) if adapter else ""
        (part / CARD).write_text(model_card(found, loading), encoding="utf-8")
    return target


def to_gguf(found: TrainedRun, target: Path, watch: LifeWatch = USUAL) -> Path:
    """Write `target`, a GGUF file, by llama.cpp's converter on the PATH.

    Refused without it, or if it fails; TryAgain if it freezes.
    """
    converter = shutil.which(CONVERTER)
    if converter is None:
        raise Refused(
            f"--gguf needs llama.cpp's {CONVERTER} on the PATH, which no package has; export with --merge, and run it "
            "on that folder where llama.cpp is"
        )
    if found.run.config.model.task != "causal-lm":
        raise Refused(f"--gguf is for causal-lm; run {found.run.id} trained {found.run.config.model.task}")
    if target.exists():
        raise Refused(f"{target} exists; give another place with --to, or remove it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="fleetune-") as scratch,
        tempfile.TemporaryDirectory(prefix=f".{target.name}-", dir=target.parent) as beside,
    ):
        merged, part = export(found, Path(scratch) / "model", merge=True), Path(beside) / target.name
        code, output = _run([converter, str(merged), "--outfile", str(part)], watch)
        if code == SILENT_CODE:
            raise TryAgain(f"{CONVERTER} {describe_exit(code)}; run it again")
        if code or not part.exists():
            said = (output.strip() or "it says nothing").splitlines()[-1]
            raise Refused(f"{CONVERTER} failed ({said[:200]}); export with --merge, and look at that folder")
        rename_durably(part, target)
    return target


def _run(command: list[str], watch: LifeWatch) -> tuple[int, str]:
    """Run a program of others to its end; return its exit code and what it has written, its errors at the end."""
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "errors": "replace"}
    with subprocess.Popen(command, start_new_session=True, text=True, **pipes) as process:
        frozen = functools.partial(_frozen, psutil.Process(process.pid))
        end = functools.partial(os.killpg, process.pid, signal.SIGKILL)  # what it has started holds the pipes, too
        with watch.following(CONVERTER, frozen, end) as silent:
            output, errors = process.communicate()
        return SILENT_CODE if silent.is_set() else process.returncode, errors.strip() or output


def _frozen(process: psutil.Process) -> str | None:
    """The same sign again and again while a process, or one that it has started, is stopped. There is no other one of
    a program that is not ours, which may use no processor time for long."""
    with suppress(psutil.Error):
        if any(each.status() == psutil.STATUS_STOPPED for each in (process, *process.children(recursive=True))):
            return "stopped"
    return None


def check_token(repository: str, api: Any) -> None:
    """Refuse a push that the hub would for want of a token; TryAgain if it does not answer. api: as of `push`."""
    with _asking(repository, "nothing was exported"):
        api.whoami()


def push(folder: Path, repository: str, api: Any) -> str:
    """Upload a folder to a repository of the hub, made private where there is none; returns its address.

    What loaders would read there of another model, such as an adapter beside a merged one, is removed by the same
    upload, and told; other files stay. api: a `huggingface_hub.HfApi`, which finds the token in its own login or in
    HF_TOKEN.
    """
    with _asking(repository, f"{folder} has it, and the same command pushes it from there"):
        repository = str(api.create_repo(repository, exist_ok=True, private=True).repo_id)
        old = sorted(name for name in api.list_repo_files(repository) if _loaded(name) and not (folder / name).exists())
        exactly = [glob.escape(name) for name in old]
        address = api.upload_folder(folder_path=str(folder), repo_id=repository, delete_patterns=exactly).commit_url
    if old:
        tell(f"removed from {repository}, of another model and kept in its history only: {', '.join(old)}")
    return str(address)


@contextmanager
def _asking(repository: str, kept: str) -> Iterator[None]:
    """Tell what the hub refuses, or does not answer. kept: where the model is, so that it can be asked again."""
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalTokenNotFoundError

    try:
        yield
    except LocalTokenNotFoundError:
        raise Refused("--push needs a token of the hub; run `hf auth login`, or set HF_TOKEN") from None
    except (HFValidationError, ValueError) as error:
        raise Refused(f"--push {repository}: not a name of the hub ({first_line(error)}); give OWNER/NAME") from None
    except (HfHubHTTPError, OSError) as error:
        raise TryAgain(f"--push {repository}: the hub did not take it ({first_line(error)}); {kept}") from None


def _loaded(name: str) -> bool:
    """True for a file of a repository that a loader of models may read."""
    return any(fnmatchcase(name, each) and name.count("/") == each.count("/") for each in LOADED)


def _loading(adapter: Path) -> str:
    """What the adapter's own README says about its base and about loading it."""
    _, _, text = (adapter / CARD).read_text(encoding="utf-8").partition("\nBase model:")
    return "Base model:" + text.rstrip()


@contextmanager
def _atomic(target: Path) -> Iterator[Path]:
    """A folder beside `target` that becomes it if the body succeeds, and is removed if it fails. Others may read it and
    what is in it as they may read what this process makes itself: libraries, and the store, have modes of their own."""
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise Refused(f"{target} already holds something; give a new or empty folder with --to")
    target = target.resolve()  # a link stays one
    if target.is_mount() or target == Path.cwd():
        what = "a mounted folder" if target.is_mount() else "the working directory"
        raise Refused(f"{target} is {what}, which a new folder cannot replace; give a folder in it")
    target.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(
        prefix=f".{target.name}-", dir=target.parent, ignore_cleanup_errors=True
    ) as beside:
        part = Path(beside) / target.name
        part.mkdir()
        usual = stat.S_IMODE(part.stat().st_mode)  # the umask can only be asked by changing it
        yield part
        for path in (part, *part.rglob("*")):
            if not path.is_symlink():
                path.chmod(usual if path.is_dir() else usual & 0o666)
        rename_durably(part, target)
