"""Fork servers: children share what a server has imported, and nothing else of it."""

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import pytest

from fleetune.launching import MALLOC_ENVIRONMENT, Command, Job, ProcessLauncher, forking
from fleetune.launching.child import FORK_SERVER
from fleetune.launching.forking import KEPT_SERVERS

PATIENCE_S = 30.0
COUNTS_IMPORTS = "import os\nopen(os.environ['COUNT'], 'a').write('x')\n"
TELLS_ALL = """
import os, signal, sys
print(os.environ["TOLD"], os.environ.get("PWD"), os.getcwd(), sys.argv[1:], os.getpid() == os.getsid(0), os.umask(0))
print(sorted(os.listdir("/proc/self/fd")), signal.getsignal(signal.SIGINT) is signal.default_int_handler, __name__)
"""
STARTS_ANOTHER = """
import signal
from pathlib import Path
from fleetune.launching import MALLOC_ENVIRONMENT, Command, ProcessLauncher
command = Command(
    module="inner", log=Path(__file__).with_name("inner.log"), preloads=("slow",), environment=MALLOC_ENVIRONMENT
)
for _ in range(2):
    job = ProcessLauncher().start(command)
    print(job.pid, *next(iter(job.lines())).split(), flush=True)
"""
FREED = """
import ctypes, os
from fleetune.linux import RESIDENT, status_bytes
libc = ctypes.CDLL(None)
libc.malloc.restype, libc.free.argtypes = ctypes.c_void_p, [ctypes.c_void_p]
block = libc.malloc(1 << 26)
ctypes.memset(block, 1, 1 << 26)
held = status_bytes(RESIDENT)
libc.free(block)
print(held - status_bytes(RESIDENT) < 1 << 25)
"""
Start = Callable[..., Job]


@pytest.fixture
def start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Start]:
    """Start scripts as modules that preload the module `slow`, which counts its imports; end what runs at the end."""
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setenv("COUNT", str(tmp_path / "count"))
    (tmp_path / "slow.py").write_text(COUNTS_IMPORTS)
    jobs: list[Job] = []
    numbers = itertools.count()

    def start_script(
        script: str,
        *arguments: str,
        preloads: tuple[str, ...] = ("slow",),
        forks: bool = False,
        warms_up: tuple[str, ...] = (),
        given_up: Callable[[], bool] = lambda: False,
        **environment: str,
    ) -> Job:
        module = f"script_{next(numbers)}"
        (tmp_path / f"{module}.py").write_text(script)
        log = tmp_path / f"{module}.log"
        command = Command(
            module=module,
            arguments=arguments,
            environment=environment,
            log=log,
            preloads=preloads,
            forks=forks,
            warms_up=warms_up,
            given_up=given_up,
        )
        jobs.append(ProcessLauncher().start(command))
        return jobs[-1]

    yield start_script
    for job in jobs:
        job.stop(0)


def server_of(job: Job) -> psutil.Process:
    """The fork server of a running child."""
    server = psutil.Process(job.pid).parent()
    assert server is not None and FORK_SERVER in server.cmdline()
    return server


def test_modules_are_imported_once(start: Start, tmp_path: Path) -> None:
    """Three children of one server find a module imported that was imported once."""
    for _ in range(3):
        assert list(start("import sys; print('slow' in sys.modules)").lines()) == ["True"]
    assert (tmp_path / "count").read_text() == "x"


def test_a_forked_child_is_as_one_that_was_spawned(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Folder, arguments, session, umask, descriptors and signal handlers are those of a child without a server."""
    start("").wait(PATIENCE_S)  # the server starts here, and must not keep this folder
    monkeypatch.chdir(tmp_path)
    for name in ("PWD", "TOLD"):
        monkeypatch.setenv(name, "now")
    lines = [list(start(TELLS_ALL, "a b", "", preloads=preloads).lines()) for preloads in (("slow",), ())]
    assert lines[0] == lines[1] and len(lines[0]) == 2


def test_a_forked_child_shows_its_own_command_line(start: Start) -> None:
    """`ps` shows a forked child as what it runs, not as the server that it was forked from."""
    job = start("print('here', flush=True); import signal; signal.pause()", "--task", "t.json")
    assert next(iter(job.lines())) == "here"
    shown = " ".join(psutil.Process(job.pid).cmdline()).split()
    assert shown[-3:] == ["script_0", "--task", "t.json"] and FORK_SERVER not in shown


def test_children_with_another_environment_have_another_server(start: Start, tmp_path: Path) -> None:
    """Libraries read the environment when they are imported, so children that differ in it share no server."""
    script = "import os; print(os.environ['OMP_NUM_THREADS'])"
    assert [*start(script).lines(), *start(script, OMP_NUM_THREADS="2").lines(), *start(script).lines()] == [*"121"]
    assert (tmp_path / "count").read_text() == "xx"


def test_a_server_serves_children_that_need_fewer_modules(start: Start, tmp_path: Path) -> None:
    """A child whose modules a server has imported among others gets no server of its own; one that needs more does."""
    (tmp_path / "other.py").write_text("")
    assert start("", preloads=("slow", "other")).wait(PATIENCE_S) == 0
    assert list(start("import sys; print('other' in sys.modules)").lines()) == ["True"]
    assert (tmp_path / "count").read_text() == "x"
    assert start("", preloads=("slow", "html")).wait(PATIENCE_S) == 0
    assert (tmp_path / "count").read_text() == "xx"


def test_children_never_run_older_code_of_this_project(
    start: Start, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A server that has imported this project serves until a file is changed or added, also one that it has not
    imported, and again once all are as they were; a server of libraries alone goes on."""
    library = tmp_path / "ours"
    library.mkdir()
    (library / "__init__.py").write_text("import slow\n")
    monkeypatch.setattr(forking, "PACKAGE", library)
    before = forking.code_mark(("ours",))
    wait = "print('here', flush=True); import signal; signal.pause()"
    servers = [server_of(start(wait, preloads=("ours",))) for _ in range(2)]
    assert servers[0] == servers[1]
    added = library / "more.py"
    for change in (added.touch, lambda: added.write_text("A = 1")):
        change()
        servers.append(server_of(start(wait, preloads=("ours",))))
    assert len(set(servers)) == 3
    added.unlink()
    assert server_of(start(wait, preloads=("ours",))) == servers[0]
    assert forking.code_mark(("slow",)) == "" != before


def test_idle_servers_beyond_some_end(start: Start) -> None:
    """Servers without a child end when there are too many; one with a child never does."""
    wait = "print('here', flush=True); import signal; signal.pause()"
    busy = start(wait, KIND="busy")
    first = start(wait, KIND="first")
    idle = server_of(first)
    first.stop(0)
    for kind in range(KEPT_SERVERS):
        start("", KIND=str(kind)).wait(PATIENCE_S)
    assert not idle.is_running() or idle.status() == psutil.STATUS_ZOMBIE
    assert busy.poll() is None and server_of(busy).is_running()


def test_a_killed_server_ends_its_children_and_is_replaced(start: Start) -> None:
    """kill -9 of a server is told as the death of its children, with what these started; the next start works."""
    job = start(
        "import subprocess, sys\n"
        "print(subprocess.Popen([sys.executable, '-c', 'import signal; signal.pause()'], stdout=2).pid, flush=True)\n"
        "import signal; signal.pause()"
    )
    grandchild = psutil.Process(int(next(iter(job.lines()))))
    server_of(job).kill()
    assert job.wait(PATIENCE_S) == -signal.SIGKILL
    assert grandchild.wait(PATIENCE_S) is None
    assert list(start("print('again')").lines()) == ["again"]


def test_a_start_that_is_given_up_waits_for_no_import(start: Start, tmp_path: Path) -> None:
    """Bug: Cancel during a stage's start took as long as importing torch does, 13 s on a busy machine.

    The server goes on importing, and serves the next start.
    """
    os.mkfifo(tmp_path / "gate")
    (tmp_path / "slow.py").write_text("import os\nopen(os.environ['GATE']).read()")
    tells, gate = "import sys; print('slow' in sys.modules)", str(tmp_path / "gate")
    assert list(start(tells, GATE=gate, given_up=lambda: True).lines()) == ["False"]
    (tmp_path / "gate").write_text("")
    assert list(start(tells, GATE=gate).lines()) == ["True"]


def test_a_module_that_starts_threads_is_not_forked_after(start: Start, tmp_path: Path) -> None:
    """A fork copies the locks of other threads as they are, so a server that has some leaves starts to the launcher."""
    (tmp_path / "slow.py").write_text(
        COUNTS_IMPORTS + "import threading\nthreading.Thread(target=threading.Event().wait, daemon=True).start()\n"
    )
    for _ in range(2):
        assert list(start("import sys; print('slow' in sys.modules)").lines()) == ["False"]
    assert (tmp_path / "count").read_text() == "x", "it was tried again"


def test_a_server_that_cannot_fork_is_not_tried_again_where_it_ended_between_two_looks(
    start: Start, tmp_path: Path
) -> None:
    """Bug: on a busy machine such a server's answer and its end could come at once, and only the end was seen."""
    (tmp_path / "slow.py").write_text(COUNTS_IMPORTS + "raise ImportError('not here')\n")

    def children() -> set[int]:
        return {child.pid for child in psutil.Process().children()}

    known, given_up_s = children(), time.monotonic() + PATIENCE_S

    def until_it_ends() -> bool:
        while children() - known:
            assert time.monotonic() < given_up_s
        return True

    for _ in range(2):
        assert list(start("print('here')", given_up=until_it_ends).lines()) == ["here"]
    assert (tmp_path / "count").read_text() == "x", "it was tried again"


def test_a_module_that_cannot_be_imported_is_left_to_the_child(start: Start) -> None:
    """A missing module costs its children the server, and no more."""
    assert list(start("print('here')", preloads=("no_such_module",)).lines()) == ["here"]


def test_many_threads_may_start_at_once(start: Start) -> None:
    """Starts of several threads get each their own child."""
    barrier = threading.Barrier(8)

    def answer(number: int) -> list[str]:
        barrier.wait()
        return list(start("import sys; print(*sys.argv[1:])", str(number)).lines())

    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(answer, range(8))) == [[str(number)] for number in range(8)]


def test_a_process_that_cannot_be_forked_is_told_as_such(start: Start, monkeypatch: pytest.MonkeyPatch) -> None:
    """An answer that the system refuses another process raises the error of the system."""
    start("").wait(PATIENCE_S)
    # private: a system without room for one process more would fail other tests too
    monkeypatch.setattr(forking.ServerConnection, "_ask", lambda *_: {"event": "refused", "errno": 11})
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Exception, match="no process could be started .Resource temporarily unavailable"):
        start("")
    assert len(os.listdir("/proc/self/fd")) <= before, "a descriptor was left open"  # others may close meanwhile


def test_children_of_children_import_nothing_again(start: Start, tmp_path: Path) -> None:
    """A child that starts children forks them from what it was itself forked from, and they end with it."""
    (tmp_path / "inner.py").write_text(
        "import os, signal, sys\nprint('slow' in sys.modules, os.environ['KIND'], flush=True)\nsignal.pause()"
    )
    job = start(STARTS_ANOTHER + "signal.pause()", forks=True, KIND="nested")
    lines = job.lines()
    found = [next(lines).split() for _ in range(2)]
    assert [words for _, *words in found] == [["True", "nested"]] * 2
    assert (tmp_path / "count").read_text() == "x"
    inner = [psutil.Process(int(pid)) for pid, *_ in found]
    server = inner[0].parent()
    assert server is not None and server == inner[1].parent() and server.ppid() == job.pid
    os.kill(job.pid, signal.SIGKILL)
    assert job.wait(PATIENCE_S) == -signal.SIGKILL
    gone, left = psutil.wait_procs([server, *inner], PATIENCE_S)
    assert not left


@pytest.mark.parametrize(
    ("does", "forked"),
    [("", True), ("raise ValueError('no such model')", True), ("threading.Thread(target=signal.pause).start()", False)],
    ids=["returns", "fails", "leaves a thread"],
)
def test_what_children_would_each_make_is_made_once_where_they_are_forked_from(
    does: str, forked: bool, start: Start, tmp_path: Path
) -> None:
    """It is called with its arguments, once for two children. Where it fails they are forked all the same, and the log
    says why; where it leaves a thread, whose locks a fork would copy, they are started without a server.
    """
    made = f"import signal, threading\nMADE = []\ndef warm_up(*given):\n    MADE.append(given)\n    {does}\n"
    (tmp_path / "warm.py").write_text(made)
    (tmp_path / "inner.py").write_text("import os, warm\nprint(os.getppid(), warm.MADE, flush=True)\n")
    job = start(STARTS_ANOTHER + "signal.pause()", forks=True, warms_up=("warm", "a", "b"), KIND="warm")
    lines = job.lines()
    found = [next(lines).split(maxsplit=2) for _ in range(2)]
    assert [made for _, _, made in found] == [repr([("a", "b")] if forked else [])] * 2
    assert [parent != str(job.pid) for _, parent, _ in found] == [forked] * 2
    assert ("no such model" in (tmp_path / "script_0.log").read_text()) == ("raise" in does)


def test_the_output_of_a_child_ends_with_it(start: Start, tmp_path: Path) -> None:
    """The server that a child has for children of its own does not hold the output of the child open."""
    job = start("print('last')", forks=True, KIND="silent")
    assert list(job.lines()) == ["last"] and job.wait(PATIENCE_S) == 0


def test_options_of_malloc_are_applied_to_forked_children(start: Start) -> None:
    """A child that asks for it keeps memory that it freed, another one of the same server gives it back.

    glibc reads these variables when a program starts, so a forked child that only inherited them would not obey.
    """
    kept = [list(start(FREED, **environment).lines()) for environment in ({}, MALLOC_ENVIRONMENT, {})]
    assert kept == [["False"], ["True"], ["False"]]
    assert list(start(FREED, preloads=(), **MALLOC_ENVIRONMENT).lines()) == ["True"]


def test_a_server_that_is_told_to_end_waits_for_its_children(start: Start) -> None:
    """SIGTERM to all processes at once, as from a machine that shuts down, leaves children the time to write.

    Bug: the server ended at once and its children with it, so that a training lost the rounds since its checkpoint.
    """
    job = start(
        "import signal, sys, time\n"
        "def write(*_): time.sleep(0.3); print('written', flush=True); sys.exit(0)\n"
        "signal.signal(signal.SIGTERM, write)\nprint('here', flush=True)\nwhile True: signal.pause()",
        KIND="shutdown",
    )
    lines = job.lines()
    assert next(lines) == "here"
    server = server_of(job)
    for process in (server, psutil.Process(job.pid)):
        process.terminate()
    assert list(lines) == ["written"] and job.wait(PATIENCE_S) == 0
    assert psutil.wait_procs([server], PATIENCE_S)[1] == [], "it has no children left"
    assert list(start("print('again')", KIND="shutdown").lines()) == ["again"]
