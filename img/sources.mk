# SPDX-License-Identifier: BSD-3-Clause
#
# The files of nbdkit-qcow2-img.

img_sources = \
	%reldir%/advise.c \
	%reldir%/amend.c \
	%reldir%/apply.c \
	%reldir%/arguments.c \
	%reldir%/bench.c \
	%reldir%/change.h \
	%reldir%/check.c \
	%reldir%/command.h \
	%reldir%/compare.c \
	%reldir%/convert.c \
	%reldir%/copytarget.c \
	%reldir%/copytarget.h \
	%reldir%/create.c \
	%reldir%/diskend.c \
	%reldir%/diskend.h \
	%reldir%/diskmap.c \
	%reldir%/diskmap.h \
	%reldir%/edit.c \
	%reldir%/imagefile.c \
	%reldir%/imagefile.h \
	%reldir%/info.c \
	%reldir%/info.h \
	%reldir%/infopicture.c \
	%reldir%/infopicture.h \
	%reldir%/main.c \
	%reldir%/map.c \
	%reldir%/mappicture.c \
	%reldir%/mappicture.h \
	%reldir%/measure.c \
	%reldir%/newoptions.c \
	%reldir%/newoptions.h \
	%reldir%/partitions.c \
	%reldir%/partitions.h \
	%reldir%/policy.c \
	%reldir%/policy.h \
	%reldir%/pool.c \
	%reldir%/pool.h \
	%reldir%/print.c \
	%reldir%/print.h \
	%reldir%/progress.c \
	%reldir%/progress.h \
	%reldir%/rawdisk.c \
	%reldir%/rawdisk.h \
	%reldir%/rawsize.c \
	%reldir%/rawsize.h \
	%reldir%/rebase.c \
	%reldir%/secrets.c \
	%reldir%/secrets.h \
	%reldir%/svg.c \
	%reldir%/svg.h \
	%reldir%/upload.c \
	%reldir%/upload.h \
	%reldir%/validate.c \
	%reldir%/validate.h \
	%reldir%/validateimage.c \
	%reldir%/validatereport.c \
	%reldir%/validatereport.h \
	%reldir%/validateshards.c \
	%reldir%/validateshards.h \
	%reldir%/values.c \
	%reldir%/values.h \
	%reldir%/words.c \
	$(NULL)
