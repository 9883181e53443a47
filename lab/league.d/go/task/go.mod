// SPDX-License-Identifier: BSD-3-Clause

module league/task

go 1.24
