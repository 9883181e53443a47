# SPDX-License-Identifier: BSD-3-Clause
#
# Commands of nbdkit-qcow2-img that have a name of their own, as links to it: see main.c.

own_names = nbdkit-qcow2-advise-cache nbdkit-qcow2-apply-changes nbdkit-qcow2-validate
