# Two images to run stages in, `plan` (no torch) and `train`, and `mounted`, a thin one for development that finds
# its packages in folders mounted from the machine. Built by `make images`, which first gathers the packages as wheels:
# nothing here asks a network, so no address or secret of one can stay in a layer. No step needs a shell.
# Bytecode is kept by content, not time; files of packages that are meant for a newer Python stay without.
ARG BASE_IMAGE=python:3.11-slim

FROM ${BASE_IMAGE} AS mounted
ENV HOME=/tmp USER=fleetune LOGNAME=fleetune OMP_NUM_THREADS=1 PYTHONUNBUFFERED=1 PYTHONDONTWRITEBYTECODE=1 \
    PYTHONPATH=/opt/fleetune/code:/opt/fleetune/packages
WORKDIR /tmp
USER 10001:10001
ENTRYPOINT ["python3"]

FROM ${BASE_IMAGE} AS plan-packages
RUN --mount=type=bind,source=build/wheels/plan,target=/wheels \
    ["python3", "-m", "pip", "install", "--quiet", "--no-index", "--find-links=/wheels", "--no-compile", "--no-cache-dir", "--root-user-action=ignore", "--target=/opt/fleetune/packages", "--constraint=/wheels/constraints.txt", "--requirement=/wheels/requirements.txt"]
RUN ["python3", "-c", "import compileall, py_compile; compileall.compile_dir('/opt/fleetune/packages', quiet=2, workers=0, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"]

FROM ${BASE_IMAGE} AS train-packages
RUN --mount=type=bind,source=build/wheels/train,target=/wheels \
    ["python3", "-m", "pip", "install", "--quiet", "--no-index", "--find-links=/wheels", "--no-compile", "--no-cache-dir", "--root-user-action=ignore", "--target=/opt/fleetune/packages", "--constraint=/wheels/constraints.txt", "--requirement=/wheels/requirements.txt"]
RUN ["python3", "-c", "import compileall, py_compile; compileall.compile_dir('/opt/fleetune/packages', quiet=2, workers=0, invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH)"]

FROM ${BASE_IMAGE} AS code
COPY fleetune /opt/fleetune/code/fleetune
COPY stages /opt/fleetune/code/stages
RUN ["python3", "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", "/opt/fleetune/code"]

FROM mounted AS plan
COPY --from=plan-packages /opt/fleetune/packages /opt/fleetune/packages
COPY --from=code /opt/fleetune/code /opt/fleetune/code

FROM mounted AS train
COPY --from=train-packages /opt/fleetune/packages /opt/fleetune/packages
COPY --from=code /opt/fleetune/code /opt/fleetune/code
