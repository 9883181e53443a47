// SPDX-License-Identifier: BSD-3-Clause

module comparison/task

go 1.24
