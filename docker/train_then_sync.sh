#!/bin/sh
# Ends when the reports are delivered, not when the training is over: the process that uploads them ends with the
# container. The exit status is the training's.
[ "$1" = train ] || exec isentrope "$@"

# As the container's first process it has to hand on what it is asked; a command in the background ignores SIGINT.
trap 'asked=1; kill -TERM "$training" 2>/dev/null' TERM INT
isentrope "$@" &
training=$!
asked=1
while [ -n "$asked" ]; do
    asked=
    wait "$training"
    status=$?
done
if [ -d "$ISENTROPE_HOME/spool" ]; then
    isentrope sync "$ISENTROPE_HOME/spool" >&2 || echo "What was not delivered stays in $ISENTROPE_HOME/spool." >&2
fi
exit "$status"
