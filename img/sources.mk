# SPDX-License-Identifier: BSD-3-Clause
#
# The files of nbdkit-qcow2-img.

img_sources = \
	%reldir%/arguments.c \
	%reldir%/check.c \
	%reldir%/command.h \
	%reldir%/imagefile.c \
	%reldir%/imagefile.h \
	%reldir%/info.c \
	%reldir%/info.h \
	%reldir%/main.c \
	%reldir%/print.c \
	%reldir%/print.h \
	%reldir%/progress.c \
	%reldir%/progress.h \
	%reldir%/secrets.c \
	%reldir%/secrets.h \
	%reldir%/values.c \
	%reldir%/values.h \
	%reldir%/words.c \
	$(NULL)
