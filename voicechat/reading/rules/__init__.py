"""All rules, in the order in which they are asked: the first that matches wins."""

from voicechat.reading.rules import addresses, arithmetic, dates, fixed, measures, money, names, plain, powers

RULES = (
    *money.RULES,
    *fixed.RULES,
    *addresses.RULES,
    *dates.RULES,
    *powers.RULES,
    *measures.RULES,
    *names.RULES,
    *arithmetic.RULES,
    *plain.RULES,
)
