# A trainer: the client and one framework, of which pip knows the name.
#
#     docker build -f docker/trainer.Dockerfile -t headrace-trainer:1.0.0 .
#     docker build -f docker/trainer.Dockerfile --build-arg FRAMEWORK=torch -t headrace-trainer:torch .
#     docker build -f docker/trainer.Dockerfile --build-arg FRAMEWORK= -t headrace-trainer:numpy .
# The tag changes: to build an image again, add its digest by --build-arg BASE=…@sha256:…
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ARG FRAMEWORK="tensorflow-cpu>=2.16"
WORKDIR /src
RUN python -m venv /opt/headrace
# The framework and what the client depends on are a layer of their own: it is large.
COPY docker/requirements.py pyproject.toml ./
RUN python requirements.py pyproject.toml > /tmp/wanted && echo "${FRAMEWORK}" >> /tmp/wanted \
    && /opt/headrace/bin/pip install --no-cache-dir -r /tmp/wanted
COPY README.md LICENSE ./
COPY proto proto
COPY server server
COPY client client
RUN /opt/headrace/bin/pip install --no-cache-dir --no-deps . \
    && /opt/headrace/bin/pip check

FROM ${BASE}
LABEL org.opencontainers.image.title="headrace-trainer" \
      org.opencontainers.image.version="1.0.0" \
      org.opencontainers.image.licenses="MIT"
# The same user as the server's: shared memory is for it alone.
RUN groupadd --gid 10001 headrace \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent headrace \
    && install -d /srv
COPY --from=build /opt/headrace /opt/headrace
ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONUNBUFFERED=1
USER 10001:10001
WORKDIR /srv
# Python takes SIGINT for KeyboardInterrupt, and the trainer leaves with its batches given back;
# the first process of a container would not hear SIGTERM.
STOPSIGNAL SIGINT
ENTRYPOINT ["python"]
CMD ["-c", "import headrace; print('headrace', headrace.__version__)"]
