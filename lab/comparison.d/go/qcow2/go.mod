// SPDX-License-Identifier: BSD-3-Clause

module comparison/qcow2

go 1.24.5

require (
	github.com/ehrlich-b/go-qcow2 v0.0.0-20251222000841-127538a4e00b
	comparison/task v0.0.0
)

require (
	github.com/aead/serpent v0.0.0-20160714141033-fba169763ea6 // indirect
	github.com/containers/luksy v0.0.0-20251120151536-e33b6d68eabe // indirect
	github.com/google/uuid v1.6.0 // indirect
	github.com/klauspost/compress v1.18.1 // indirect
	golang.org/x/crypto v0.45.0 // indirect
	golang.org/x/sys v0.38.0 // indirect
)

replace comparison/task => ../task
