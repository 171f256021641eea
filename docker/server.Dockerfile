# One Isentrope server with its pages, for SQLite or PostgreSQL. It holds no torch.
# Build from the repository's root: docker build --file docker/server.Dockerfile --tag isentrope-server .
FROM python:3.11.11-slim-bookworm AS build

WORKDIR /build
COPY pyproject.toml uv.lock README.md LICENSE ./
COPY probe probe
COPY server server
COPY dashboard dashboard
COPY trainer trainer
RUN python -m venv /opt/uv \
    && /opt/uv/bin/pip install --no-cache-dir "uv>=0.13,<0.14" \
    && python -m venv /opt/isentrope \
    && /opt/uv/bin/uv export --frozen --no-emit-project --extra server --extra postgres --extra dashboard --output-file locked.txt \
    && /opt/uv/bin/uv pip install --python /opt/isentrope/bin/python --no-cache --no-deps --require-hashes --requirement locked.txt \
    && /opt/uv/bin/uv pip install --python /opt/isentrope/bin/python --no-cache --no-deps .

FROM python:3.11.11-slim-bookworm

# The home holds the owner's token and, without PostgreSQL, the database.
RUN install --directory --owner=10001 --group=10001 --mode=0700 /var/lib/isentrope
COPY --from=build /opt/isentrope /opt/isentrope
ENV PATH=/opt/isentrope/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    HOME=/var/lib/isentrope \
    ISENTROPE_HOME=/var/lib/isentrope \
    ISENTROPE_HOST=0.0.0.0 \
    ISENTROPE_HTTP_PORT=7070 \
    ISENTROPE_GRPC_PORT=7071
USER 10001:10001
VOLUME /var/lib/isentrope
EXPOSE 7070 7071
# With TLS on the ports themselves, ask the port that has none: ISENTROPE_LOCAL_HTTP_PORT.
HEALTHCHECK --interval=5s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; r.urlopen('http://127.0.0.1:%s/readyz' % os.environ['ISENTROPE_HTTP_PORT'], timeout=4)"]
ENTRYPOINT ["isentrope"]
CMD ["up"]
