# The image with all programs of Coil and the plugin: Debian's Python, the libraries that the programs load, the pinned
# Python packages, and nothing else: no shell, no package manager, no compiler.
#
#     docker build --tag coil .
#     docker buildx build --platform linux/amd64,linux/arm64 --tag coil .
#
# Nothing in it names an architecture: each step runs in Debian for the one that is asked for, emulated if need be.
#
# `python -m integration.image` carries out this same file without Docker and without a registry. It knows ARG, FROM,
# RUN, COPY, ENV, LABEL and USER, each in its plain form, and a last stage that copies one folder of another stage.

# Debian 13 from wherever it is to be had: a mirror, or an image of your own with your package sources and certificates.
ARG BASE=debian:13-slim

FROM ${BASE} AS build
ENV DEBIAN_FRONTEND=noninteractive PIP_NO_CACHE_DIR=1 PIP_ROOT_USER_ACTION=ignore
# Debian's, by the name that its packages and folders have.
ENV PYTHON=python3.13
# What runs in the image, and what becomes part of the plugin.
ENV PACKAGES="libc6 gcc-14-base libgcc-s1 libstdc++6 zlib1g \
      $PYTHON-minimal lib$PYTHON-minimal lib$PYTHON-stdlib \
      libbz2-1.0 libexpat1 libffi8 liblzma5 libsqlite3-0 libssl3t64 libuuid1 \
      libnftables1 libgmp10 libjansson4 libmnl0 libnftnl11 libxtables12 \
      libkmod2 libzstd1 netbase \
      iptables libip4tc2 libip6tc2 conntrack libnetfilter-conntrack3 libnfnetlink0" \
    LINKED="libc6-dev lib$PYTHON-dev"
# locked: the packages of image/debian.*.sha256 and no others. current: those that Debian has at this moment.
ARG DEBIAN=locked
# The moment at which Debian had the packages, such as 20261129T000000Z: apt takes them from Debian's archive of it.
ARG SNAPSHOT=
COPY image/debian.amd64.sha256 image/debian.arm64.sha256 /source/image/
RUN set -eu; umask 022; \
    if [ -n "$SNAPSHOT" ]; then \
      find /etc/apt -name '*.sources' -exec sed -i "s/^Types:/Snapshot: $SNAPSHOT\nTypes:/" '{}' +; \
      find /etc/apt -name '*.list' -exec \
        sed -i -e "s/^deb \[/deb [snapshot=$SNAPSHOT /" -e "s/^deb \([^[]\)/deb [snapshot=$SNAPSHOT] \1/" '{}' +; \
    fi; \
    apt-get update -q -o APT::Update::Error-Mode=any ${SNAPSHOT:+-o Acquire::Check-Valid-Until=false}; \
    mkdir /packages; cd /packages; \
    apt-get -q -o APT::Sandbox::User=root download $PACKAGES $LINKED; \
    lock=/source/image/debian.$(dpkg --print-architecture).sha256; \
    if [ "$DEBIAN" != current ]; then \
      sed 's/.*  //' "$lock" > locked; ls *.deb > found; \
      if ! cmp -s locked found || ! sha256sum --check --quiet "$lock"; then \
        diff locked found || true; \
        echo "Debian has other packages than ${lock#/source/}: build with --build-arg SNAPSHOT=, a moment at which it had" \
          "them, or take those of today with --build-arg DEBIAN=current (docs/install.md)" >&2; \
        exit 1; \
      fi; \
    fi; \
    apt-get install -q -y --no-install-recommends gcc $LINKED $PYTHON python3-pip

# Unpacked and not installed: no maintainer's script does anything that is needed here. dpkg's description of each package
# stays, for programs that look an image over for known defects.
RUN set -eu; umask 022; \
    mkdir -p /image/usr/bin /image/usr/sbin /image/usr/lib /image/usr/lib64 /image/var/lib/dpkg/status.d /linked; \
    for folder in bin sbin lib lib64; do ln -s usr/$folder /image/$folder; done; \
    cd /packages; \
    for package in $LINKED; do \
      dpkg-deb --field "$package"_*.deb > "/linked/$package"; rm "$package"_*.deb; \
    done; \
    for package in *.deb; do \
      dpkg-deb --fsys-tarfile "$package" | tar -x --no-same-owner --keep-directory-symlink -C /image; \
      dpkg-deb --field "$package" > "/image/var/lib/dpkg/status.d/${package%%_*}"; \
    done; \
    # dpkg's alternatives would make these two, and a package that brings nothing else the third.
    for name in iptables ip6tables; do ln -s $name-nft /image/usr/sbin/$name; done; \
    ln -s $PYTHON /image/usr/bin/python3; \
    # Of the documentation the licences stay.
    find /image/usr/share -mindepth 1 -maxdepth 1 ! -name doc -exec rm -r '{}' +; \
    find /image/usr/share/doc -mindepth 2 ! -type d ! -name copyright -delete; \
    find /image -depth -type d -empty ! -path /image/usr/lib64 -delete; \
    # Conversions of character sets (Python has its own), modules whose libraries are not here, and Python's own tests.
    rm -r /image/usr/lib/*-linux-gnu/gconv; \
    cd /image/usr/lib/$PYTHON/lib-dynload; \
    rm -f _curses* _dbm* readline* *_test* _xxtest* xx*; \
    cd /image; \
    mkdir -p dev etc proc run sys usr/libexec/coil usr/local/bin; \
    mkdir -m 1777 tmp; \
    ln -s ../run var/run; \
    echo 'include /etc/ld.so.conf.d/*.conf' > etc/ld.so.conf; \
    printf '%s\n' root:x:0:0:root:/:/sbin/nologin coil:x:65532:65532:coil:/:/sbin/nologin > etc/passwd; \
    printf '%s\n' root:x:0: coil:x:65532: > etc/group; \
    # Without the time of each library, which is kept for the next run.
    ldconfig -r /image; rm -rf var/cache

# The packages that pyproject.toml names, at the versions of constraints.txt, and the tools that build our own and write
# the SBOM: those files alone that the locks have (python -m integration.image.lock). Of the services of AWS the two that
# are asked, in their latest version: addresses come from EC2, and STS may be who gives a pod its credentials. What
# OpenStack's libraries bring for their own tests and builds stays outside, such as setuptools.
COPY image/build.lock image/kubectl-coil.lock image/programs.lock /source/image/
RUN set -eu; umask 022; cd /source/image; \
    packages=/image/usr/local/lib/$PYTHON/dist-packages; \
    install="$PYTHON -m pip install -q --require-hashes --only-binary :all:"; \
    $install --target /tools -r build.lock; \
    $install --no-compile --target "$packages" -r programs.lock; \
    rm -rf "$packages/bin" "$packages"/setuptools* "$packages"/_distutils_hack "$packages"/distutils-precedence.pth; \
    for library in keystoneauth1 openstack pbr stevedore; do rm -r "$packages/$library/tests"; done; \
    find "$packages/botocore/data" -mindepth 1 -maxdepth 1 -type d ! -name ec2 ! -name sts -exec rm -r '{}' +; \
    find "$packages/botocore/data/ec2" -mindepth 1 -maxdepth 1 | sort | head -n -1 | xargs rm -r; \
    # Of Kubernetes' client what loads kubeconfigs and calls the API server, without its models.
    rm -r "$packages/kubernetes_asyncio/client/models" "$packages/kubernetes_asyncio/client/api"; \
    find "$packages/kubernetes_asyncio" -mindepth 1 -maxdepth 1 -type d \
      ! -name client ! -name config ! -name stream -exec rm -r '{}' +; \
    find "$packages/kubernetes_asyncio" -name '*_test.py' -delete; \
    # Of kubectl-coil, in a folder of its own: structlog would have each program import rich where it finds it. Markdown
    # and coloured source code are not printed.
    cli=/image/usr/local/lib/kubectl-coil; \
    $install --no-compile --target "$cli" -r kubectl-coil.lock; \
    rm -rf "$cli/bin" "$cli"/markdown_it* "$cli"/mdurl* "$cli"/pygments*; \
    # Bytecode that is taken as it is: the root may be read-only, and times of files mean nothing in an image.
    $PYTHON -m compileall -q -s /image --invalidation-mode unchecked-hash /image/usr/lib/$PYTHON "$packages" "$cli"

# The plugin: one static executable, which the installer puts on each node.
COPY cni/ /source/cni/
RUN set -eu; umask 022; \
    cd /source/cni && $PYTHON -B -m coil_freezer /image/usr/libexec/coil/coil

# The programs.
COPY LICENSE README.md pyproject.toml /source/
COPY services/ /source/services/
COPY image/coil_sbom/ /source/image/coil_sbom/
ARG SOURCE_DATE_EPOCH=0
RUN set -eu; umask 022; \
    packages=/image/usr/local/lib/$PYTHON/dist-packages; \
    PYTHONPATH=/tools $PYTHON -m pip install -q --no-build-isolation --no-deps --no-compile --target "$packages" /source; \
    cli=/image/usr/local/lib/kubectl-coil; \
    mv "$packages/kubectl_coil" "$cli/"; \
    for program in kubectl-coil:main kubectl_complete-coil:completion; do \
      rm "$packages/bin/${program%:*}"; \
      printf '%s\n' '#!/usr/bin/python3' 'import sys' '' "sys.path.insert(0, \"${cli#/image}\")" '' \
        "from kubectl_coil.${program#*:} import main" '' 'sys.exit(main())' > "/image/usr/local/bin/${program%:*}"; \
      chmod 755 "/image/usr/local/bin/${program%:*}"; \
    done; \
    mv "$packages"/bin/* /image/usr/local/bin/; rmdir "$packages/bin"; \
    $PYTHON -m compileall -q -s /image --invalidation-mode unchecked-hash "$cli" \
      "$packages"/coil "$packages"/coil_* "$packages"/coild; \
    # What all of it is made of (docs/install.md).
    mkdir -p /image/usr/share/coil; \
    version=$($PYTHON -c 'import tomllib; print(tomllib.load(open("/source/pyproject.toml", "rb"))["project"]["version"])'); \
    PYTHONPATH=/tools:/source/image $PYTHON -B -m coil_sbom.write /image --version "$version" \
      --linked /linked --linked-into /usr/libexec/coil/coil > /image/usr/share/coil/sbom.cdx.json; \
    find /image -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" '{}' +

FROM scratch
COPY --from=build /image/ /
ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin COIL_PATH=/usr/libexec/coil/coil PYTHONDONTWRITEBYTECODE=1
LABEL org.opencontainers.image.title=coil org.opencontainers.image.licenses=Apache-2.0
# Numeric, so that the kubelet can tell that it is not root. What needs root is told so by the chart.
USER 65532:65532
