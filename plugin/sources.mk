# SPDX-License-Identifier: BSD-3-Clause
#
# What only nbdkit needs, for the plugin and for its tests.

# The front door without nbdkit's callbacks.  Tests give it a few of nbdkit's functions.
door_sources = \
	%reldir%/createparams.c \
	%reldir%/createparams.h \
	%reldir%/editparams.c \
	%reldir%/editparams.h \
	%reldir%/iostats.c \
	%reldir%/iostats.h \
	%reldir%/paramhint.c \
	%reldir%/paramhint.h \
	%reldir%/paramrules.c \
	%reldir%/paramrules.h \
	%reldir%/params.c \
	%reldir%/params.h \
	%reldir%/paramvalue.c \
	%reldir%/paramvalue.h \
	%reldir%/progress.c \
	%reldir%/progress.h \
	%reldir%/prometheus.c \
	%reldir%/prometheus.h \
	%reldir%/qmp.c \
	%reldir%/qmp.h \
	%reldir%/qmpargs.c \
	%reldir%/qmpargs.h \
	%reldir%/qmpcommit.c \
	%reldir%/qmpcommit.h \
	%reldir%/qmpframe.c \
	%reldir%/qmpframe.h \
	%reldir%/stats.c \
	%reldir%/stats.h \
	%reldir%/statsimage.c \
	%reldir%/statsimage.h \
	%reldir%/writer.c \
	%reldir%/writer.h \
	$(NULL)

# nbdkit's callbacks, and what happens before serving.
callback_sources = \
	%reldir%/clientlog.c \
	%reldir%/clientlog.h \
	%reldir%/control.c \
	%reldir%/control.h \
	%reldir%/ending.c \
	%reldir%/ending.h \
	%reldir%/eventlog.c \
	%reldir%/eventlog.h \
	%reldir%/ownsockets.c \
	%reldir%/ownsockets.h \
	%reldir%/ownthreads.c \
	%reldir%/ownthreads.h \
	%reldir%/plugin.c \
	%reldir%/prepare.c \
	%reldir%/prepare.h \
	%reldir%/qmpamend.c \
	%reldir%/qmpamend.h \
	%reldir%/qmpblockdev.c \
	%reldir%/qmpblockdev.h \
	%reldir%/qmpchange.c \
	%reldir%/qmpchange.h \
	%reldir%/qmpcommands.c \
	%reldir%/qmpcommands.h \
	%reldir%/qmpfollow.c \
	%reldir%/qmpfollow.h \
	%reldir%/qmpjobs.c \
	%reldir%/qmpjobs.h \
	%reldir%/qmpjobs-impl.h \
	%reldir%/qmpjobwork.c \
	%reldir%/qmpjobverbs.c \
	%reldir%/qmpjobverbs.h \
	%reldir%/qmpmirror.c \
	%reldir%/qmpmirror.h \
	%reldir%/qmpnodes.c \
	%reldir%/qmpnodes.h \
	%reldir%/qmpobject.c \
	%reldir%/qmpobject.h \
	%reldir%/qmpoverlay.c \
	%reldir%/qmpoverlay.h \
	%reldir%/qmpplan.c \
	%reldir%/qmpplan.h \
	%reldir%/qmpquery.c \
	%reldir%/qmpquery.h \
	%reldir%/qmpstream.c \
	%reldir%/qmpstream.h \
	%reldir%/qmptarget.c \
	%reldir%/qmptarget.h \
	%reldir%/qmpthreshold.c \
	%reldir%/qmpthreshold.h \
	%reldir%/qmptransaction.c \
	%reldir%/qmptransaction.h \
	%reldir%/qmpwhere.c \
	%reldir%/qmpwhere.h \
	$(NULL)

# What the core calls: the words of this front end, and its log.  Tests bring others.
word_sources = \
	%reldir%/log.c \
	%reldir%/remedy.c \
	$(NULL)
