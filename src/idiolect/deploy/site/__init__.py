"""A site: the data owner's long-lived process. It holds data, model and private rows.

rules (what may leave) · log (what has) · spent (how much, counted on disk) · folder (where all this
is) · owned (the data) · agreement (what a federation is about) · leaving (a reply before it goes) ·
site (what is asked and answered) · listening (the socket) · process (all of it, in the foreground)

Calls, in their order (`idiolect.host.calls` has the frame, and the calls of a round):

    hello {}                          hello {idiolect, site, run, concluded}
    sums {pass, data, ...}            sums {columns}: see sums.py; only where the owner allows it
    agree {plan, run, seed, data}     census {clients, inputs, classes}
    enrol {wire_ids, checksum, validation}      status {concluded}
    update, answer, conclude, evaluate, evaluate_shared, status: see host/service.py

What the owner's rules forbid, or what does not fit, is answered by refused {reason}; an error
inside by failed {text}, which tells nothing of the data.
"""
