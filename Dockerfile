# The command line in a container, as a user without rights:
#   docker build -t intarsia .
#   docker run --rm --user "$(id -u):$(id -g)" -v "$PWD:/data" intarsia run mine.toml
# With other extras: --build-arg EXTRAS=privacy,tune (torch brings its own several GB).
FROM python:3.12-slim AS build
COPY . /source
RUN python -m pip wheel --no-cache-dir --no-deps --wheel-dir /wheels /source

FROM python:3.12-slim
ARG EXTRAS=privacy
COPY --from=build /wheels /wheels
RUN python -m pip install --no-cache-dir "$(ls /wheels/intarsia-*.whl)[$EXTRAS]" \
    && rm -r /wheels \
    && useradd --uid 1000 --create-home intarsia \
    && mkdir -m 1777 /var/cache/intarsia
# whoever the container runs as may keep compiled kernels and fonts there
ENV NUMBA_CACHE_DIR=/var/cache/intarsia MPLCONFIGDIR=/var/cache/intarsia
USER intarsia
RUN intarsia doctor --warm
WORKDIR /data
ENTRYPOINT ["intarsia"]
CMD ["--help"]
