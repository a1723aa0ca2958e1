"""`python -m tests.support.flows.print_environment`: the names in the environment of a child, on one line."""

import os
import sys

if __name__ == "__main__":
    sys.stdout.write(" ".join(os.environ) + "\n")
