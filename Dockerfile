# Two images: `bridge` (ingest, push, HTTP, the live view, the audit; no Java) and `spark` (the job, with Spark and Java).
#
#   docker build --target bridge --tag pulsebridge:0.1.0 .
#   docker build --target spark --tag pulsebridge-spark:0.1.0 .
#
# BASE is any Debian with Python 3.10-3.13, venv and libstdc++. Packages are those of requirements.lock, with its hashes.
ARG BASE=python:3.12-slim-bookworm

FROM ${BASE} AS wheel
WORKDIR /build
RUN python3 -m venv /opt/pulsebridge
ENV PATH=/opt/pulsebridge/bin:$PATH PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
COPY requirements.lock conf/deploy/container/locked.py ./
RUN python locked.py hatchling > build.lock \
    && pip install --no-deps --require-hashes --requirement build.lock --target hatch
COPY pyproject.toml README.md CHANGELOG.md LICENSE src/
COPY bridge src/bridge
COPY sources src/sources
COPY sinks src/sinks
COPY streaming src/streaming
COPY sparkplug src/sparkplug
COPY pulsebridge src/pulsebridge
COPY conf src/conf
RUN PYTHONPATH=/build/hatch pip wheel --no-deps --no-build-isolation --wheel-dir . ./src

FROM wheel AS bridge-packages
ARG BRIDGE_EXTRAS=audit,http,ui
RUN python locked.py ./pulsebridge-*.whl --extras "${BRIDGE_EXTRAS}" > packages.lock \
    && pip install --no-deps --require-hashes --requirement packages.lock \
    && pip install --no-deps ./pulsebridge-*.whl \
    && pip uninstall --yes setuptools pip

FROM wheel AS spark-packages
ARG SPARK_EXTRAS=audit,decoders,local,quality
RUN python locked.py ./pulsebridge-*.whl --extras "${SPARK_EXTRAS}" > packages.lock \
    && pip install --no-deps --require-hashes --requirement packages.lock \
    && pip install --no-deps ./pulsebridge-*.whl \
    && pip uninstall --yes setuptools pip

# What both have: a user without rights, and the folders in which it may write.
FROM ${BASE} AS user
RUN useradd --uid 10001 --user-group --no-create-home --home-dir /var/lib/pulsebridge --shell /usr/sbin/nologin pulsebridge \
    && install --directory --owner=10001 --group=10001 /var/lib/pulsebridge /lakehouse
ENV PATH=/opt/pulsebridge/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYTHONDONTWRITEBYTECODE=1 \
    PULSEBRIDGE_METRICS__HOST=0.0.0.0 \
    PULSEBRIDGE_METRICS__PORT=9464
WORKDIR /var/lib/pulsebridge
VOLUME /var/lib/pulsebridge
EXPOSE 9464
HEALTHCHECK --interval=10s --timeout=5s --start-period=30s --retries=6 \
    CMD ["python", "/usr/local/share/pulsebridge/health.py"]
COPY conf/deploy/container/health.py /usr/local/share/pulsebridge/health.py
ENTRYPOINT ["pulsebridge"]
CMD ["--help"]

FROM user AS spark
# The job needs a JVM; its version is that of the base's Debian.
ARG JAVA=openjdk-17-jre-headless
# hadolint ignore=DL3008
RUN apt-get update \
    && apt-get install --yes --no-install-recommends "${JAVA}" procps \
    && rm -rf /var/lib/apt/lists/*
COPY --from=spark-packages /opt/pulsebridge /opt/pulsebridge
# Delta's jars by their coordinates, so that a container needs no download.
ENV PULSEBRIDGE_LOCAL__CACHE_DIR=/opt/pulsebridge/cache \
    PULSEBRIDGE_STREAMING__SPARK__LOG=/tmp/spark.log
RUN python -c "from pathlib import Path; from pulsebridge.downloads.spark_jars import delta_jars; print(*delta_jars(Path('/opt/pulsebridge/cache')), sep='\n')"
VOLUME /lakehouse
USER 10001:10001

FROM user AS bridge
COPY --from=bridge-packages /opt/pulsebridge /opt/pulsebridge
USER 10001:10001
