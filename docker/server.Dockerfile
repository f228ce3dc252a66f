# headrace serve: an image with the server, its sources (Arrow and URLs included) and no framework.
#
#     docker build -f docker/server.Dockerfile -t headrace-server:1.0.0 .
#     docker run -v "$PWD/feeds.py:/srv/feeds.py:ro" -v state:/state -p 127.0.0.1:5557-5558:5557-5558 \
#         --shm-size=1g headrace-server:1.0.0 serve feeds.py:feeds \
#         --bind tcp://0.0.0.0:5557 --insecure --state-dir /state
# The tag changes: to build an image again, add its digest by --build-arg BASE=…@sha256:…
ARG BASE=python:3.11-slim

FROM ${BASE} AS build
ARG EXTRAS="server"
WORKDIR /src
RUN python -m venv /opt/headrace
# What it depends on is a layer of its own, which a change of the code leaves as it is.
COPY docker/requirements.py pyproject.toml ./
RUN python requirements.py pyproject.toml ${EXTRAS} > /tmp/wanted \
    && /opt/headrace/bin/pip install --no-cache-dir -r /tmp/wanted
COPY README.md LICENSE ./
COPY proto proto
COPY server server
COPY client client
RUN /opt/headrace/bin/pip install --no-cache-dir --no-deps . \
    && /opt/headrace/bin/pip check \
    && /opt/headrace/bin/pip uninstall --yes pip setuptools

FROM ${BASE}
LABEL org.opencontainers.image.title="headrace-server" \
      org.opencontainers.image.version="1.0.0" \
      org.opencontainers.image.licenses="MIT"
# /state and /data belong to the user, and so does a new volume that is mounted there.
RUN groupadd --gid 10001 headrace \
    && useradd --uid 10001 --gid 10001 --no-create-home --home-dir /nonexistent headrace \
    && install -d -o 10001 -g 10001 -m 0700 /state /data \
    && install -d /srv
COPY --from=build /opt/headrace /opt/headrace
COPY docker/healthy.py /opt/headrace/healthy.py
# Health, metrics and a page, for who is in the container, such as the healthcheck.
ENV PATH=/opt/headrace/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HEADRACE_HTTP=127.0.0.1:9464
USER 10001:10001
WORKDIR /srv
VOLUME /state
# The server, and up to 16 workers.
EXPOSE 5557-5573
STOPSIGNAL SIGTERM
# Well from the first second on, also while sources are indexed; /readyz waits for the feeds.
HEALTHCHECK --interval=5s --timeout=8s --start-period=30s --retries=3 \
    CMD ["python", "-I", "/opt/headrace/healthy.py", "http://127.0.0.1:9464/healthz"]
ENTRYPOINT ["headrace"]
CMD ["serve", "feeds.py:feeds", "--bind", "tcp://0.0.0.0:5557", "--insecure", "--state-dir", "/state"]
