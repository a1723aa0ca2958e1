"""How a command ends: one red sentence on stderr and an exit code, whatever happened; never a traceback.

0 done, 64 malformed input or usage, 65 infeasible, 75 try again or unforeseen, 130 stopped by Ctrl-C.
"""

import os
import sys
import tempfile
import traceback
from typing import Any, NoReturn

from rich.console import Console
from rich.markup import escape
from typer.core import TyperGroup
from typer.exceptions import TyperException

from fleetune.errors import FleetuneError, Refused, TryAgain

STOPPED = 130
"""128 + SIGINT, as shells have it."""


class Commands(TyperGroup):
    """The group of all commands; typer calls `main`, for users and tests alike."""

    def main(self, *args: Any, **kwargs: Any) -> NoReturn:
        """Run the command line to its end and leave with its exit code."""
        try:
            kwargs["standalone_mode"] = False
            code = super().main(*args, **kwargs)
        except FleetuneError as error:
            code = _say(str(error), error.exit_code)
        except TyperException as error:  # usage: no such option, a missing argument
            code = _say(f"{_lower(error.format_message())} See fleetune --help.", Refused.exit_code)
        except BrokenPipeError:  # the reader of our output (`| head`) has seen enough
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = 0
        except Exception as error:
            code = _say(_unforeseen(error), TryAgain.exit_code)
        if code == STOPPED:
            _say("stopped; the same command goes on from what is finished", STOPPED)
        sys.exit(code if isinstance(code, int) else 0)


def _say(sentence: str, code: int) -> int:
    """One sentence on stderr, red where it is a terminal; wrapped by the terminal only, so that paths stay whole."""
    one_line = " ".join(sentence.split())
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[red]{escape(one_line)}[/red]")
    return code


def _unforeseen(error: Exception) -> str:
    """Keep the traceback of a mistake of ours in a file, and name the file."""
    handle, path = tempfile.mkstemp(prefix="fleetune-", suffix=".log", text=True)
    with open(handle, "w", encoding="utf-8") as log:
        log.writelines(traceback.format_exception(error))
    what = str(error).strip().partition("\n")[0][:200]
    return f"unforeseen {type(error).__name__}" + (f" ({what})" if what else "") + f": the whole story is in {path}"


def _lower(message: str) -> str:
    message = message.strip()
    return message if message.endswith(".") else message + "."
