"""Exit codes of the commands: every failure is one red sentence on stderr and an exit code, never a traceback.

0 done, 64 malformed input or usage, 65 infeasible, 75 try again or unforeseen, 130 stopped by Ctrl-C.
"""

import os
import sys
import tempfile
import traceback
from typing import Any, NoReturn

from typer.core import TyperGroup
from typer.exceptions import TyperException

from fleetune import filesystem
from fleetune.errors import STOPPED, FleetuneError, Refused, TryAgain


class Interrupted(FleetuneError):
    """Ctrl-C, with a message on how to continue."""

    exit_code = STOPPED


class CommandGroup(TyperGroup):
    """The group of all commands; typer calls `main` for users and for tests."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command line and exit with its code."""
        try:
            kwargs["standalone_mode"] = False
            code = super().main(*args, **kwargs)
        except FleetuneError as error:
            code = _print_error(str(error), error.exit_code, *getattr(error, "__notes__", ()))
        except TyperException as error:  # usage: no such option, a missing argument
            code = _print_error(f"{_as_sentence(error.format_message())} See fleetune --help.", Refused.exit_code)
        except (BrokenPipeError, SystemExit) as error:
            code = _ignore_closed_pipe(error)
        except Exception as error:
            known = _find_interrupt(error) or filesystem.disk_error(error, filesystem.folders())
            code = known.exit_code if known else TryAgain.exit_code
            _print_error(str(known or _log_traceback(error)), code, *getattr(error, "__notes__", ()))
        else:
            if code == STOPPED:
                _print_error("stopped", STOPPED)
        sys.exit(code if isinstance(code, int) else 0)


def _print_error(sentence: str, code: int, *notes: str) -> int:
    """Print one sentence to stderr, red on a terminal, and a line for each note; return `code`. Only the terminal wraps
    lines, so that paths stay whole."""
    from flows.cli.terminal import terminal

    console = terminal(stderr=True)
    console.print(" ".join(sentence.split()), style="red")
    for note in notes:
        console.print(note)
    return code


def _log_traceback(error: Exception) -> str:
    """Write the traceback of an unexpected error to a file; the sentence that names the file."""
    try:
        handle, path = tempfile.mkstemp(prefix="fleetune-", suffix=".log", text=True)
        with open(handle, "w", encoding="utf-8") as log:
            log.writelines(traceback.format_exception(error))
        note = f"the traceback is in {path}"
    except OSError as unwritten:
        note = f"the traceback could not be written ({unwritten.strerror})"
    what = str(error).strip().partition("\n")[0][:200]
    return f"unforeseen {type(error).__name__}" + (f" ({what})" if what else "") + f": {note}"


def _ignore_closed_pipe(error: BaseException) -> int:
    """Return 0 when the reader of stdout (`| head`) has closed it; raise the error again otherwise."""
    if not isinstance(error, BrokenPipeError) and not isinstance(error.__context__, BrokenPipeError):
        raise error
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return 0


def _find_interrupt(error: BaseException | None) -> Interrupted | None:
    """Find a Ctrl-C that a library has wrapped; None when there is none."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return Interrupted("stopped")
        error = error.__cause__ or error.__context__
    return None


def _as_sentence(message: str) -> str:
    message = message.strip()
    return message if message.endswith((".", "?")) else message + "."
