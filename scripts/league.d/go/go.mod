// SPDX-License-Identifier: BSD-3-Clause

module league

go 1.24

require github.com/lima-vm/go-qcow2reader v0.7.1
