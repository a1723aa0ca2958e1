"""Child processes: output, environment, signals and exit codes."""

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import psutil
import pytest

import fleetune
from fleetune.launching import Command, Job, ProcessLauncher, describe_exit, thread_environment
from fleetune.launching.process import child_command

PATIENCE_S = 30.0
Start = Callable[..., Job]


@pytest.fixture(params=[(), ("colorsys",)], ids=["spawned", "forked"])
def preloads(request: pytest.FixtureRequest) -> tuple[str, ...]:
    """Both ways in which a child starts: by itself, or forked by a server that has imported a module."""
    return request.param


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preloads: tuple[str, ...]) -> Iterator[Start]:
    """Start scripts as modules; stops those that still run at the end."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    jobs: list[Job] = []

    def start_script(script: str, *arguments: str, first_line: bytes = b"", **environment: str) -> Job:
        (tmp_path / "script.py").write_text(script)
        log = tmp_path / "logs" / "job.log"
        command = Command(module="script", arguments=arguments, environment=environment, first_line=first_line, log=log)
        command = replace(command, preloads=preloads)
        jobs.append(ProcessLauncher().start(command))
        return jobs[-1]

    yield start_script
    for job in jobs:
        job.stop(0)


def test_lines_log_and_exit_code(start: Start) -> None:
    """Stdout comes as lines, stderr goes to the log, the exit code is kept."""
    job = start("import sys\nprint('one', flush=True)\nprint('tw\\u00f6')\nprint('oh', file=sys.stderr)\nsys.exit(65)")
    assert list(job.lines()) == ["one", "twö"]
    assert job.wait(PATIENCE_S) == 65 == job.poll()
    assert job.tail() == "oh"
    assert list(job.lines()) == []


def test_a_missing_module_says_so_in_the_log(preloads: tuple[str, ...], tmp_path: Path) -> None:
    """A child that cannot start leaves the reason in the tail of its log."""
    job = ProcessLauncher().start(Command(module="no.such.module", log=tmp_path / "log", preloads=preloads))
    assert job.wait(PATIENCE_S) == 1
    assert "No module named 'no'" in job.tail(1)


def test_the_tail_is_short(start: Start) -> None:
    """`tail` returns only the last lines of a long log."""
    job = start("import sys\nfor i in range(50_000): print(i, file=sys.stderr)")
    assert job.wait(PATIENCE_S) == 0
    assert job.tail(3) == "49997\n49998\n49999"


@pytest.mark.parametrize(
    ("script", "code", "last_line"),
    [
        ("raise SystemExit", 0, ""),
        ("raise SystemExit(65)", 65, ""),
        ("raise SystemExit('no space left')", 1, "no space left"),
        ("1 / 0", 1, "ZeroDivisionError: division by zero"),
        ("import os; os._exit(7)", 7, ""),
        ("import os; os.kill(os.getpid(), 15)", -15, ""),
        ("import atexit, sys; atexit.register(print, 'bye', end='', file=sys.stderr)", 0, "bye"),
        (
            "import sys, threading, time\n"
            "threading.Thread(target=lambda: (time.sleep(0.05), print('done', file=sys.stderr))).start()",
            0,
            "done",
        ),
    ],
    ids=["exit", "code", "text", "error", "at-once", "signal", "exit-function", "thread"],
)
def test_every_end_of_a_script_is_told(start: Start, script: str, code: int, last_line: str) -> None:
    """The exit code and the last words of a child are those that Python gives a script which ends so."""
    job = start(script)
    assert job.wait(PATIENCE_S) == code
    assert job.tail(1) == last_line


def test_a_child_never_waits_for_its_reader(start: Start) -> None:
    """A child that prints more than a pipe holds ends although nobody has read a line."""
    job = start("print('x' * 1_000_000)")
    assert job.wait(PATIENCE_S) == 0
    assert [len(line) for line in job.lines()] == [1_000_000]


def test_children_get_one_thread_and_their_own_environment(start: Start) -> None:
    """Every child computes with one thread unless its command says otherwise."""
    script = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['TOKENIZERS_PARALLELISM'], os.environ['X'])"
    assert list(start(script, X="y").lines()) == ["1 false y"]
    assert list(start(script, X="y", OMP_NUM_THREADS="2").lines()) == ["2 false y"]


def test_idle_threads_soon_leave_the_core_to_others(start: Start) -> None:
    """Idle threads spin briefly: long spinning once made a round on a busy machine ten times as long.

    They do not sleep at once either, which costs speed on an idle machine.
    """
    script = "import os; print(os.environ['OMP_NUM_THREADS'], os.environ['GOMP_SPINCOUNT'])"
    threads, spins = next(start(script, **thread_environment(2)).lines()).split()
    assert (threads, 1_000 < int(spins) < 100_000) == ("2", True)


def test_children_import_nothing_from_the_working_directory(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither children nor grandchildren import from the working directory: a `ctypes.py` there once ran in all."""
    for name in ("ctypes", "queue", "json", "fleetune"):
        (tmp_path / "data" / f"{name}.py").parent.mkdir(exist_ok=True)
        (tmp_path / "data" / f"{name}.py").write_text("raise SystemExit(3)")
    monkeypatch.chdir(tmp_path / "data")
    monkeypatch.setenv("PYTHONPATH", f":{tmp_path}:")  # an empty part stands for the working directory
    inner = "import ctypes, fleetune, json, queue; print(fleetune.__file__)"
    job = start(f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {inner!r}], check=True)\n{inner}")
    assert job.wait(PATIENCE_S) == 0, job.tail()
    assert list(job.lines()) == [fleetune.__file__] * 2


def test_children_find_the_code_of_their_parent_where_it_is_not_installed(tmp_path: Path) -> None:
    """A child imports this project from a source checkout that is not installed."""
    bare = ["-S", *child_command(0)[1:], "tests.launching"]  # -S: nothing that is installed is found
    run = subprocess.run(
        [sys.executable, *bare], cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert "'tests.launching' is a package and cannot be directly executed" in run.stderr, "it was found"


def test_the_first_line_is_seen_nowhere_else(start: Start) -> None:
    """The first line reaches stdin, and is found neither in arguments, environment, log nor repr."""
    secret = "s3cret-" * 5
    job = start(
        "import sys\nprint(len(sys.stdin.read()), flush=True)\nimport time; time.sleep(60)", first_line=secret.encode()
    )
    assert next(iter(job.lines())) == str(len(secret) + 1)
    proc = Path("/proc") / str(job.pid)
    assert secret.encode() not in (proc / "cmdline").read_bytes() + (proc / "environ").read_bytes()
    command = Command(module="m", first_line=secret.encode(), log=Path("log"))
    assert secret not in f"{command} {job!r} {job.tail()}"


def test_a_child_that_reads_nothing_does_no_harm(start: Start) -> None:
    """A first line longer than the pipe to a child that ends at once raises nothing."""
    assert start("", first_line=b"x" * 1_000_000).wait(PATIENCE_S) == 0


def test_stop_sends_sigterm_first(start: Start) -> None:
    """A child that handles SIGTERM decides its exit code, and stopping it again changes nothing."""
    job = start(
        "import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(7))\nprint('ready')\nsignal.pause()"
    )
    assert next(iter(job.lines())) == "ready"
    assert job.wait(0) is None and job.poll() is None
    assert job.stop(PATIENCE_S) == 7 == job.stop()


def test_stop_kills_after_the_grace_period(start: Start) -> None:
    """A child that ignores SIGTERM is killed after the grace period."""
    job = start("import signal\nsignal.signal(signal.SIGTERM, signal.SIG_IGN)\nprint('ready')\nsignal.pause()")
    assert next(iter(job.lines())) == "ready"
    assert describe_exit(job.stop(0)).startswith("killed by signal 9")


def test_a_group_ends_with_its_leader(start: Start) -> None:
    """Processes that a child started in its group end with the child."""
    job = start(
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], stdout=2).pid)\n"
    )
    grandchild = int(next(iter(job.lines())))
    assert job.wait(PATIENCE_S) == 0
    assert gone(grandchild)


def test_children_die_with_a_killed_parent(start: Start, tmp_path: Path, preloads: tuple[str, ...]) -> None:
    """kill -9 of the parent ends even a child that ignores all signals it can."""
    (tmp_path / "deaf.py").write_text(
        "import signal\nfor s in (15, 2, 1): signal.signal(s, signal.SIG_IGN)\nprint('deaf')\nsignal.pause()"
    )
    parent = start(
        "import threading\nfrom pathlib import Path\nfrom fleetune.launching import Command, ProcessLauncher\n"
        "def go():\n"
        f"    command = Command(module='deaf', log=Path({str(tmp_path / 'deaf.log')!r}), preloads={preloads!r})\n"
        "    job = ProcessLauncher().start(command)\n"
        "    print(next(iter(job.lines())), job.pid, flush=True)\n"
        "thread = threading.Thread(target=go); thread.start(); thread.join()\n"
        "import signal; signal.pause()"
    )
    word, child = next(iter(parent.lines())).split()
    assert word == "deaf" and psutil.pid_exists(int(child)), "it outlives the thread that asked for it"
    os.kill(parent.pid, signal.SIGKILL)
    assert parent.wait(PATIENCE_S) == -signal.SIGKILL
    assert gone(int(child))


def gone(pid: int) -> bool:
    """True once a process has ended; a zombie counts as ended."""
    try:
        process = psutil.Process(pid)
        return process.status() == psutil.STATUS_ZOMBIE or process.wait(PATIENCE_S) is None
    except psutil.NoSuchProcess:
        return True


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (0, "ended normally"),
        (64, "ended with exit code 64"),
        (-15, "killed by signal 15 (SIGTERM)"),
        (139, "killed by signal 11 (SIGSEGV)"),
        (-9, "killed by signal 9 (often the system's answer when memory runs out)"),
        (137, "killed by signal 9 (often the system's answer when memory runs out)"),
        (255, "ended with exit code 255"),
    ],
)
def test_exit_codes_in_words(code: int, words: str) -> None:
    """`describe_exit` turns exit codes into words, and SIGKILL hints at memory."""
    assert describe_exit(code) == words
