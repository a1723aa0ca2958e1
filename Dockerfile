# Two images to run stages in: `plan` (plan and monitor; no torch) and `train` (all stages; by default prepare and
# evaluate). `mounted` is a thin one for development, whose packages are mounted from the machine. `make images` builds
# them, and gathers the packages as wheels first: no step uses the network or a shell, so no address or secret of a
# package registry can stay in a layer.
# Bytecode is validated by content, not time; package files that need a newer Python, and packages' tests, are left
# uncompiled. Images grow from the layers of their packages, since a copy of those takes as long as their installation.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS thin
ENV HOME=/tmp USER=fleetune LOGNAME=fleetune OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPATH=/opt/fleetune/code:/opt/fleetune/packages
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["python3"]

FROM thin AS mounted
LABEL fleetune.mounted=1

FROM thin AS plan-packages
USER 0:0
RUN --mount=type=bind,source=build/wheels/plan,target=/wheels \
    ["python3", "-m", "pip", "install", "--quiet", "--no-index", "--find-links=/wheels", "--no-compile", "--no-cache-dir", "--root-user-action=ignore", "--target=/opt/fleetune/packages", "--constraint=/wheels/constraints.txt", "--requirement=/wheels/requirements.txt"]
RUN ["python3", "-c", "import compileall, py_compile, re; compileall.compile_dir('/opt/fleetune/packages', rx=re.compile('/tests?/'), quiet=2, workers=0, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"]
USER 10001:10001

FROM thin AS train-packages
USER 0:0
RUN --mount=type=bind,source=build/wheels/train,target=/wheels \
    ["python3", "-m", "pip", "install", "--quiet", "--no-index", "--find-links=/wheels", "--no-compile", "--no-cache-dir", "--root-user-action=ignore", "--target=/opt/fleetune/packages", "--constraint=/wheels/constraints.txt", "--requirement=/wheels/requirements.txt"]
RUN ["python3", "-c", "import compileall, py_compile, re; compileall.compile_dir('/opt/fleetune/packages', rx=re.compile('/tests?/'), quiet=2, workers=0, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"]
USER 10001:10001

# The planners' machine code, which every new container would otherwise compile in 15 s. This stage solves a small problem
# by every method, with only those parts of the library that this needs, so that other changes do not rebuild it.
FROM ${BASE_IMAGE} AS planners
ENV PYTHONPATH=/opt/fleetune/code:/opt/fleetune/packages PYTHONDONTWRITEBYTECODE=1
COPY fleetune/__init__.py fleetune/arrays.py fleetune/linux.py fleetune/jit.py fleetune/errors.py fleetune/exposed_folders.py fleetune/filesystem.py fleetune/formatting.py fleetune/library_sources.py /opt/fleetune/code/fleetune/
COPY fleetune/contracts /opt/fleetune/code/fleetune/contracts
COPY fleetune/clock /opt/fleetune/code/fleetune/clock
COPY fleetune/program /opt/fleetune/code/fleetune/program
COPY fleetune/solving /opt/fleetune/code/fleetune/solving
RUN --mount=type=bind,from=plan-packages,source=/opt/fleetune/packages,target=/opt/fleetune/packages \
    --mount=type=bind,source=configs/problems/three-devices.json,target=/problem.json \
    ["python3", "-c", "from pathlib import Path; from fleetune.solving import kinds, read, solve; kind, problem = read(Path('/problem.json').read_bytes(), 'problem', kinds()); print([solve(kind, problem, method=method).objective for method in kind.methods])"]

FROM ${BASE_IMAGE} AS code
COPY containers /opt/fleetune/code/containers
COPY fleetune /opt/fleetune/code/fleetune
COPY stages /opt/fleetune/code/stages
RUN ["python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "/opt/fleetune/code"]
COPY --from=planners /opt/fleetune/code/fleetune/__pycache__ /opt/fleetune/code/fleetune/__pycache__

FROM plan-packages AS plan
COPY --from=code /opt/fleetune/code /opt/fleetune/code

FROM train-packages AS train
COPY --from=code /opt/fleetune/code /opt/fleetune/code
