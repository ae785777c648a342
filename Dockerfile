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
RUN apt-get update -q \
 && apt-get install -q -y --no-install-recommends \
      gcc libc6-dev lib$PYTHON-dev $PYTHON python3-pip

# What runs in the image. Unpacked and not installed: no maintainer's script does anything that is needed here.
# dpkg's description of each package stays, for programs that look an image over for known defects.
RUN set -eu; umask 022; \
    mkdir -p /packages /image/usr/bin /image/usr/sbin /image/usr/lib /image/usr/lib64 /image/var/lib/dpkg/status.d; \
    for folder in bin sbin lib lib64; do ln -s usr/$folder /image/$folder; done; \
    cd /packages; \
    apt-get -q -o APT::Sandbox::User=root download \
      libc6 gcc-14-base libgcc-s1 libstdc++6 zlib1g \
      $PYTHON-minimal lib$PYTHON-minimal lib$PYTHON-stdlib \
      libbz2-1.0 libexpat1 libffi8 liblzma5 libsqlite3-0 libssl3t64 libuuid1 \
      libnftables1 libgmp10 libjansson4 libmnl0 libnftnl11 libxtables12 \
      libkmod2 libzstd1 netbase \
      iptables libip4tc2 libip6tc2 libnetfilter-conntrack3 libnfnetlink0; \
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

# The packages that pyproject.toml names, at the versions of constraints.txt, and the tool that builds our own. Of the
# services of AWS the two that are asked, in their latest version: addresses come from EC2, and STS may be who gives a pod
# its credentials. What OpenStack's libraries bring for their own tests and builds stays outside, such as setuptools.
COPY constraints.txt pyproject.toml /source/
RUN set -eu; umask 022; cd /source; \
    packages=/image/usr/local/lib/$PYTHON/dist-packages; \
    $PYTHON -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
      extras = project["optional-dependencies"]; \
      print(*project["dependencies"], *extras["aws"], *extras["node-dump"], *extras["openstack"], sep="\n")' \
      > requirements.txt; \
    $PYTHON -m pip install -q -c constraints.txt --target /tools hatchling; \
    $PYTHON -m pip install -q -c constraints.txt --no-compile --target "$packages" -r requirements.txt; \
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
    $PYTHON -c 'import tomllib; project = tomllib.load(open("pyproject.toml", "rb"))["project"]; \
      print(*project["optional-dependencies"]["cli"], sep="\n")' > requirements.txt; \
    $PYTHON -m pip install -q -c constraints.txt --no-compile --target "$cli" -r requirements.txt; \
    rm -rf "$cli/bin" "$cli"/markdown_it* "$cli"/mdurl* "$cli"/pygments*; \
    # Bytecode that is taken as it is: the root may be read-only, and times of files mean nothing in an image.
    $PYTHON -m compileall -q -s /image --invalidation-mode unchecked-hash /image/usr/lib/$PYTHON "$packages" "$cli"

# The plugin: one static executable, which the installer puts on each node.
COPY cni/ /source/cni/
RUN set -eu; umask 022; \
    cd /source/cni && $PYTHON -B -m coil_freezer /image/usr/libexec/coil/coil

# The programs.
COPY LICENSE README.md /source/
COPY services/ /source/services/
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
    find /image -exec touch --no-dereference --date "@$SOURCE_DATE_EPOCH" '{}' +

FROM scratch
COPY --from=build /image/ /
ENV PATH=/usr/local/bin:/usr/sbin:/usr/bin COIL_PATH=/usr/libexec/coil/coil PYTHONDONTWRITEBYTECODE=1
LABEL org.opencontainers.image.title=coil org.opencontainers.image.licenses=Apache-2.0
# Numeric, so that the kubelet can tell that it is not root. What needs root is told so by the chart.
USER 65532:65532
