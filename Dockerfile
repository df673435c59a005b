# For those who build images with a container engine; `make image` writes the same image without one.
# docker build --build-arg COMMIT=$(git rev-parse --short=12 HEAD) -t dracpu .

FROM rust:1.95-bookworm AS build
ARG COMMIT=
WORKDIR /src
COPY . .
RUN make build DRACPU_COMMIT=$COMMIT \
    && install -D -m 0555 target/release/dracpu /image/dracpu \
    && ln /image/dracpu /image/dracpu-gatherinfo

FROM scratch
COPY --from=build /image/ /
LABEL org.opencontainers.image.title=dracpu org.opencontainers.image.licenses=Apache-2.0
# No entry point: the chart names the program in its arguments.
CMD ["/dracpu"]
