// SPDX-License-Identifier: BSD-3-Clause

module comparison/reader

go 1.24

require (
	github.com/lima-vm/go-qcow2reader v0.7.1
	comparison/task v0.0.0
)

replace comparison/task => ../task
