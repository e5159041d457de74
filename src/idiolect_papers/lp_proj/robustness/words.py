"""The words of robustness.md."""

HEAD = """\
# Which methods withstand malicious clients?

The robustness tables of the lp-proj paper (Tables 6 to 9) on its two synthetic federations{more}:
{clients} clients of whom {heard} are heard per round, a logistic model (d = 610), {rounds} rounds,
{seeds}. Written by `idiolect reproduce robustness`.

A cell is the mean test accuracy of the **benign** clients' own models after the last round ± half
the 95 % interval over seeds (Student's t: wide for so few), and in parentheses the population
variance over those clients, averaged over seeds. Below it, in small print, is the paper's own
figure (10 repetitions; its tables have no row for Local, its Figure 4 has). ★ marks a collapse: a
mean test loss that is not finite or above a million, checked every {every} rounds, with the first
such round; the paper's ★ is a run that returned no solution. The seed changes the initial models,
P, which clients are heard, the mini-batches and which clients are malicious; the data stay the
same.

![Accuracy over the share of malicious clients, for each attack and federation](robustness.png)
"""

SETTINGS = """\
## Settings

- Attacks as published: same-value c·1 with c ~ N(0, 100²); sign-flip −|c| × message with
  c ~ N(0, 10²); gaussian N(0, 100²) in every entry; data-poison false training labels and the
  message times c ~ N(0, 20²). They act on what is sent: 21 numbers for lp-proj, a model of 610 for
  the others. The malicious clients are drawn once per seed; a larger share contains the smaller
  ones.
- The paper tunes every method on validation data over a small grid and does not report the chosen
  values. lp-proj: dim 21, batch 64, ν = 1e-10 and one mini-batch per inner problem as stated;
  λ = 0.1, both step sizes 0.1 and R = 1 are in the grid (`preset=paper`); at most 20 inner
  steps, as in the public code. Ditto: λ = 0.1, both step sizes 0.1 and R = 5, from the grid, and
  20 personal steps. Local: 20 steps per round at step size 0.1, as many as lp-proj has at most.
  RSA: the server step of its own paper (a sum of signs), on the models after the clients' steps as
  in its code (`server_step="sum-new"`), λ = 0.1, the smallest of the grid; λ = 0.01 is outside the
  grid and better (clean, Synthetic(0, 0), seed 0: 0.899 against 0.833), so these rows show the
  paper's RSA, not the best one. FedAvg (Global+…): step size 0.5 and one step per round, of the
  grid's six the best on validation data of clean runs with the mean (seed 0, both federations
  together). No other method was tuned.
- The paper does not state the number of rounds; 200 is the default of its public code. No gradient
  clipping and no weight decay, which that code has.
- Krum is the original, told f = the share of malicious clients × heard clients, rounded down, and
  at most what it tolerates: 3 of 10.
- The clean column does not depend on the attack; the paper's Krum row has two values for it.
"""

AND_MNIST = ",\nand on MNIST as the settings below say"
MNIST = """\
- MNIST, two classes per client, is here at a small scale: {clients} clients of whom {heard} are
  heard per round, one hidden layer of 100 units (d = 79,510), lp-proj with dim 50 as stated, the
  other settings as above, and few rounds: {everyone} of the methods that train everyone for many
  steps in each of them, {others} of Global+…, where those who are heard take one step.
"""

FAR_APART = """\
## Where the paper's figures differ

Cells more than {far:g} apart, or of which one is a ★; ours / the paper's.
"""

WHY = """\
Likely reasons, none of them tested. The public code of the paper draws the heard clients from the
round number alone, so that malicious clients are heard in the same rounds of every run; it clips
gradients, trains Global+… on full batches and uses distances without squares in Krum; its data
have no seed, and what its tuning chose is not known. Data poisoning differs most. The message of a
malicious client is multiplied by c ~ N(0, 20²), so a mean of ten with one of them multiplies the
shared model by about (9 + c)/10: by more than 2 in a third of such rounds, and it grows on
average. Over 200 rounds that has to overflow wherever the shared model is not bounded, and here it
does; the paper's tables show no sign of it. A median of ten tolerates one gaussian message here
(0.64 and 0.56 at 10 %), where the paper has 0.12 and 0.13; we know of no reason why it should not.
A message that overflows is rejected by our server and counts as an absent client: where the
paper's code breaks off, a run here may go on with the benign rest, and the stability of lp-proj-1
under sign-flipping is in part due to that rejection. A global model under Krum is the model of one
client, so it depends on which clients are heard last.
"""
