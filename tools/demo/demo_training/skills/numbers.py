"""Small arithmetic: sums, comparisons, counting and sorting; held out by operands."""

from random import Random

from demo_training.question import Question, single

ADD_ASKS = (
    "What is {a} + {b}?", "What is {a} plus {b}?", "Add {a} and {b}.", "{a} + {b} = ?", "{a} + {b}",
    "{a} plus {b}?", "How much is {a} + {b}?", "Calculate {a} + {b}.", "What is the sum of {a} and {b}?",
    "{a}+{b}", "{a}+{b}=",
)  # fmt: skip

SUBTRACT_ASKS = (
    "What is {a} - {b}?", "What is {a} minus {b}?", "Subtract {b} from {a}.", "{a} - {b} = ?", "{a} - {b}",
    "{a} minus {b}?", "How much is {a} - {b}?", "Calculate {a} - {b}.", "Take {b} away from {a}.", "{a}-{b}",
)  # fmt: skip


def operand(rng: Random) -> int:
    """A number of one or two digits; the small ones come more often, as people ask them."""
    return rng.randint(0, 12) if rng.random() < 0.25 else rng.randint(0, 99)


def add(rng: Random) -> Question:
    a, b = operand(rng), operand(rng)
    ask = rng.choice(ADD_ASKS).format(a=a, b=b)
    return single("add", ask, f"{a} + {b} = {a + b}.", f"{min(a, b)} {max(a, b)}")


def subtract(rng: Random) -> Question:
    b, a = sorted((operand(rng), operand(rng)))
    ask = rng.choice(SUBTRACT_ASKS).format(a=a, b=b)
    return single("subtract", ask, f"{a} - {b} = {a - b}.", f"{a} {b}")


def compare(rng: Random) -> Question:
    """Two different numbers below 100: which is larger or smaller, or whether one is."""
    low, high = sorted(rng.sample(range(100), 2))
    one, other = rng.sample((low, high), 2)
    key = f"{low} {high}"
    kind = rng.randrange(4)
    if kind == 0:
        ask = rng.choice(("Which is larger, {} or {}?", "Which number is bigger, {} or {}?", "Is {} or {} larger?"))
        return single("compare", ask.format(one, other), f"{high} is larger than {low}.", key)
    if kind == 1:
        ask = rng.choice(("Which is smaller, {} or {}?", "Which number is smaller, {} or {}?", "Is {} or {} smaller?"))
        return single("compare", ask.format(one, other), f"{low} is smaller than {high}.", key)
    if kind == 2:
        ask = rng.choice(("Is {} larger than {}?", "Is {} bigger than {}?", "Is {} greater than {}?"))
        answer = f"Yes, {one} is larger than {other}." if one > other else f"No, {one} is smaller than {other}."
        return single("compare", ask.format(one, other), answer, key)
    ask = rng.choice(("Is {} smaller than {}?", "Is {} less than {}?"))
    answer = f"Yes, {one} is smaller than {other}." if one < other else f"No, {one} is larger than {other}."
    return single("compare", ask.format(one, other), answer, key)


def next_number(rng: Random) -> Question:
    """The neighbour of a number below 300, either way."""
    number = rng.randint(1, 299)
    if rng.random() < 0.6:
        ask = rng.choice(("What number comes after {}?", "What comes after {}?", "Which number follows {}?"))
        return single("next number", ask.format(number), f"{number + 1} comes after {number}.", f"after {number}")
    ask = rng.choice(("What number comes before {}?", "What comes before {}?", "Which number is before {}?"))
    return single("next number", ask.format(number), f"{number - 1} comes before {number}.", f"before {number}")


def count(rng: Random) -> Question:
    """Counting up or down from one number to another, both below 120."""
    start = 1 if rng.random() < 0.3 else rng.randint(0, 90)
    stop = start + rng.randint(3, 15)
    row = ", ".join(str(number) for number in range(start, stop + 1))
    if rng.random() < 0.6:
        ask = rng.choice(("Count from {} to {}.", "Please count from {} to {}.", "List the numbers from {} to {}."))
        return single("count", ask.format(start, stop), row, f"up {start} {stop}")
    down = ", ".join(str(number) for number in range(stop, start - 1, -1))
    ask = rng.choice(("Count down from {} to {}.", "Count backwards from {} to {}."))
    return single("count", ask.format(stop, start), down, f"down {start} {stop}")


def sort(rng: Random) -> Question:
    """Three to five different numbers below ten, to be put in order."""
    numbers = rng.sample(range(10), rng.randint(3, 5))
    given = ", ".join(map(str, numbers))
    ask = rng.choice(("Sort these numbers: {}", "Sort: {}", "Put these numbers in order: {}"))
    return single("sort", ask.format(given), ", ".join(map(str, sorted(numbers))), given)
