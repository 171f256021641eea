# The reference trainer with the probe in it. For a GPU: --build-arg TORCH_INDEX=https://download.pytorch.org/whl/cu128
# Build from the repository's root: docker build --file docker/trainer.Dockerfile --tag isentrope-trainer .
FROM python:3.11.11-slim-bookworm AS build

ARG TORCH=torch==2.13.0
ARG TORCH_INDEX=https://download.pytorch.org/whl/cpu
ARG EXTRAS="--extra probe --extra trainer"
WORKDIR /build
COPY pyproject.toml uv.lock README.md LICENSE ./
COPY probe probe
COPY server server
COPY dashboard dashboard
COPY trainer trainer
RUN python -m venv /opt/uv \
    && /opt/uv/bin/pip install --no-cache-dir "uv>=0.13,<0.14" \
    && python -m venv /opt/isentrope \
    && /opt/isentrope/bin/pip install --no-cache-dir --index-url "$TORCH_INDEX" "$TORCH" \
    && /opt/uv/bin/uv export --frozen --no-emit-project --no-emit-package torch $EXTRAS --output-file locked.txt \
    && /opt/uv/bin/uv pip install --python /opt/isentrope/bin/python --no-cache --no-deps --require-hashes --requirement locked.txt \
    && /opt/uv/bin/uv pip install --python /opt/isentrope/bin/python --no-cache --no-deps .

FROM python:3.11.11-slim-bookworm

# The home holds the spool: reports that no server has taken yet.
RUN install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/isentrope
COPY --from=build /opt/isentrope /opt/isentrope
COPY --chmod=0755 docker/train_then_sync.sh /usr/local/bin/train_then_sync
ENV PATH=/opt/isentrope/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/var/lib/isentrope \
    ISENTROPE_HOME=/var/lib/isentrope
USER 10001:10001
VOLUME /var/lib/isentrope
ENTRYPOINT ["train_then_sync"]
CMD ["train"]
