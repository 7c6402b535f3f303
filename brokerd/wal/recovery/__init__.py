"""Start a log: find its files, replay them, cut a torn tail, report damage."""
