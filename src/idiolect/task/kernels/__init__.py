"""The cohort gradient: how K models of one architecture are run and differentiated together."""
