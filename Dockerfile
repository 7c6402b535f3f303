# Images of brokerd: docs/install.rst, section "Containers".
#
#   docker build --target broker -t brokerd .
#   docker build --target rollup -t brokerd-rollup .

ARG BASE=debian:bookworm-slim

# The compiler is for brokerd's own modules: docs/architecture.rst, section "Compiled modules".
FROM ${BASE} AS build
RUN apt-get update && \
    apt-get install -y --no-install-recommends python3 python3-venv python3-dev gcc libc6-dev && \
    rm -rf /var/lib/apt/lists/*
WORKDIR /source
COPY constraints.txt ./
RUN python3 -m venv /opt/brokerd && PIP_CONSTRAINT=constraints.txt /opt/brokerd/bin/pip install --no-cache-dir -U setuptools
COPY setup.cfg setup.py pyproject.toml MANIFEST.in README.rst LICENSE ./
COPY scripts scripts
COPY twisted twisted
COPY pyspark_brokerd pyspark_brokerd
COPY brokerd brokerd
RUN PIP_CONSTRAINT=constraints.txt /opt/brokerd/bin/pip wheel --no-cache-dir --no-deps -w /dist .
RUN PIP_CONSTRAINT=constraints.txt /opt/brokerd/bin/pip install --no-cache-dir "$(echo /dist/*.whl)[archive,schemas]"
# The list of Twisted's plugins, which the broker's user cannot write.
RUN /opt/brokerd/bin/twistd --help >/dev/null
# A container serves its network. Whether that is safe is for the one who starts it: security.allow_insecure.
COPY etc/brokerd.toml /etc/brokerd/brokerd.toml
RUN sed -i -E -e 's|^data_dir = .*|data_dir = "/var/lib/brokerd"|' -e 's|"(tcp:[0-9]+)"|"\1:interface=0.0.0.0"|' \
    /etc/brokerd/brokerd.toml

FROM build AS build-rollup
RUN PIP_CONSTRAINT=constraints.txt /opt/brokerd/bin/pip install --no-cache-dir "$(echo /dist/*.whl)[spark]"

FROM ${BASE} AS base
RUN apt-get update && apt-get install -y --no-install-recommends python3 ca-certificates && rm -rf /var/lib/apt/lists/* && \
    groupadd --gid 10001 brokerd && \
    useradd --uid 10001 --gid brokerd --home-dir /var/lib/brokerd --shell /usr/sbin/nologin brokerd && \
    install -d -o brokerd -g brokerd -m 700 /var/lib/brokerd
COPY --from=build /etc/brokerd /etc/brokerd
ENV PATH=/opt/brokerd/bin:/usr/local/bin:/usr/bin:/bin
VOLUME /var/lib/brokerd
WORKDIR /var/lib/brokerd
USER 10001:10001
# The stop writes a snapshot; docs/operations.rst, section "Start and stop", has the times.
STOPSIGNAL SIGTERM

# brokerd-rollup, which needs the volume of the broker. --follow takes the place of a timer.
FROM base AS rollup
COPY --from=build-rollup /opt/brokerd /opt/brokerd
ENTRYPOINT ["brokerd-rollup", "--config", "/etc/brokerd/brokerd.toml"]
CMD ["--follow"]

# The last target is the default.
FROM base AS broker
COPY --from=build /opt/brokerd /opt/brokerd
# For brokerctl inside of the container.
ENV BROKERCTL_SERVER=http://127.0.0.1:9644
EXPOSE 9000 9092 5555 8080 9644
# Without the proxy of the environment, which may not reach the loopback of the container.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "from urllib.request import ProxyHandler, build_opener; build_opener(ProxyHandler({})).open('http://127.0.0.1:9644/health/ready', timeout=4)"]
ENTRYPOINT ["twistd", "-n", "--pidfile=", "brokerd", "--config", "/etc/brokerd/brokerd.toml"]
