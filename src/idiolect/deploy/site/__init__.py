"""A site: the data owner's long-lived process. It holds data, model and private rows.

consent (what the owner has agreed to) · screen (the same, for them to read) · rules (what may
leave) · state (the directory: what has left, counted and logged) · data (the
owner's) · agreement (the terms of a federation, and the contract they make here) · site (calls and
replies) · sockets · process (a site in the foreground, and its status in plain words)

Calls, in their order (`idiolect.host.calls` has the frame, and the calls of a round):

    hello {}                          hello {idiolect, site, run, concluded}
    propose {federation, plan, data}  consent {agreed}: whether the owner has agreed to these terms
    sums {pass, data, ...}            sums {columns}: see data.py; only where the owner allows it
    agree {plan, run, seed, data}     census {clients, inputs, classes}
    enrol {wire_ids, checksum, validation}      status {concluded}
    update, answer, conclude, evaluate, evaluate_shared, status: see host/service.py

What the owner's rules forbid, or what does not fit, is answered by refused {reason}; an error
inside by failed {text}, which reveals nothing of the data.
"""
