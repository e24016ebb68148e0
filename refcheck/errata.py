"""The article, statement by statement: its words, a verdict, what shows it, and the correction in both languages.

The verdicts are given by people.  Where the article's words can be put to a program (`says_…`), the verdict follows
from the code as well, and `check` fails if the two differ or a fact does not hold.  An id, once published, stays.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

from refcheck.facts import (
    VERDICTS,
    Fact,
    Says,
    dtype,
    held_by,
    keeps,
    needs,
    never_keeps,
    proven,
    says_formula,
    says_indispensable,
    says_saved,
    says_shapes,
)


@dataclass(frozen=True)
class Group:
    """A row of the article's table (``cell-…``), one of its sections (``section-…``), or its principle."""

    id: str
    layers: str  # whose pages say more
    zh: str
    en: str

    @property
    def entries(self) -> tuple[Entry, ...]:
        return tuple(entry for entry in ENTRIES if entry.group == self.id)


@dataclass(frozen=True)
class Entry:
    """One statement of the article; where there is nothing to correct or to add, zh and en are empty."""

    id: str  # the group's, and which part of it: formula, saved, shape, …
    verdict: str
    quote: str
    shown: tuple[Says | Fact, ...]
    zh: str = ""
    en: str = ""

    @property
    def group(self) -> str:
        return self.id.rpartition("-")[0]

    @property
    def part(self) -> str:
        return self.id.rpartition("-")[2]


@dataclass(frozen=True)
class Mistake:
    """What is wrong with an entry."""

    entry: str
    what: str
    instead: str

    def __str__(self) -> str:
        return f"{self.entry}: {self.what}: {self.instead} → look at refcheck/errata.py"


def check(entries: Iterable[Entry]) -> Iterator[Mistake]:
    """Every fact that does not hold, and every verdict that is not the one that follows."""
    for entry in entries:
        for what, instead in _wrong(entry):
            yield Mistake(entry.id, what, instead)


def _wrong(entry: Entry) -> Iterator[tuple[str, str]]:
    if entry.verdict not in VERDICTS:
        yield f"verdict {entry.verdict}", f"known are {', '.join(VERDICTS)}"
    if not entry.shown:
        yield "nothing shows it", "it has neither a says_… nor a fact"
    for statement in entry.shown:
        try:
            if isinstance(statement, Fact):
                if instead := statement.instead():
                    yield f"{statement.text} does not hold", instead
            else:
                verdict, found = statement.judge()
                if verdict != entry.verdict:
                    yield f"verdict {entry.verdict}", f"{statement.text} makes it {verdict}: {found}"
        except Exception as error:  # a layer, a pair or a tensor that is no longer there
            yield f"{statement.text} can't be tested", f"{type(error).__name__}: {error}"


@cache
def mistakes() -> tuple[Mistake, ...]:
    """What is wrong with the entries below, looked at once in a process."""
    return tuple(check(ENTRIES))


def counts() -> dict[str, int]:
    """How many entries have each verdict."""
    found = Counter(entry.verdict for entry in ENTRIES)
    return {verdict: found[verdict] for verdict in VERDICTS}


GROUPS = (
    Group("principle", "linear", zh="基本原则", en="The principle"),
    Group("section-linear", "linear", zh="线性层", en="Linear"),
    Group("section-dropout", "dropout", zh="Dropout 层", en="Dropout"),
    Group("section-residual", "residual", zh="残差层", en="Residual"),
    Group("section-layernorm", "layernorm", zh="LayerNorm 层", en="LayerNorm"),
    Group("section-gelu", "gelu", zh="GeLU 激活", en="GELU"),
    Group("section-softmax", "softmax", zh="Softmax 激活", en="Softmax"),
    Group("cell-embedding", "embedding", zh="Embedding", en="Embedding"),
    Group("cell-layernorm-1", "layernorm", zh="LayerNorm 1", en="LayerNorm 1"),
    Group("cell-qkv", "qkv scores attention-value", zh="QKV Linear", en="QKV linear"),
    Group("cell-scores", "scores softmax sdpa", zh="Attention scores", en="Attention scores"),
    Group("cell-mask", "mask", zh="Attention mask，可选", en="Attention mask, optional"),
    Group("cell-softmax", "softmax sdpa", zh="Softmax", en="Softmax"),
    Group(
        "cell-attention-dropout",
        "attention-dropout softmax attention-value",
        zh="Attention Dropout，可选",
        en="Attention dropout, optional",
    ),
    Group(
        "cell-attention-value",
        "attention-value out-proj",
        zh="Attention Value 聚合",
        en="Attention, weighted sum of values",
    ),
    Group("cell-out-proj", "out-proj", zh="Attention 输出投影", en="Attention output projection"),
    Group("cell-residual-1", "residual layernorm", zh="Residual Add 1", en="Residual add 1"),
    Group("cell-layernorm-2", "layernorm", zh="LayerNorm 2", en="LayerNorm 2"),
    Group("cell-ffn-gelu-linear-1", "ffn-gelu", zh="FFN Linear 1，GELU-FFN", en="FFN linear 1, with GELU"),
    Group("cell-gelu", "gelu ffn-gelu", zh="GELU 激活", en="GELU"),
    Group(
        "cell-ffn-swiglu-linear-1",
        "ffn-swiglu",
        zh="FFN Linear 1，SwiGLU-FFN，可选",
        en="FFN linear 1, with SwiGLU, optional",
    ),
    Group("cell-swiglu", "swiglu ffn-swiglu", zh="SwiGLU 激活，可选", en="SwiGLU, optional"),
    Group("cell-ffn-linear-2", "ffn-gelu", zh="FFN Linear 2", en="FFN linear 2"),
    Group("cell-ffn-dropout", "ffn-dropout", zh="FFN Dropout，可选", en="FFN dropout, optional"),
    Group("cell-residual-2", "residual", zh="Residual Add 2", en="Residual add 2"),
    Group("cell-lm-head", "lm-head cross-entropy final-norm", zh="LM Head / Classifier", en="LM head / classifier"),
)

LAYERNORM = "w * (x - x.mean(-1, keepdim=True)) / sqrt(x.var(-1, keepdim=True, correction=0) + eps) + b"
GELU = "z * (1 + erf(z / 2**0.5)) / 2"
GELU_SLOPE = "dg * ((1 + erf(z / 2**0.5)) / 2 + z * exp(-z**2 / 2) / (2 * pi) ** 0.5)"

ENTRIES = (
    Entry(
        "principle-rule",
        "right",
        "反向传播时，某个梯度公式如果要用到前向里的某个“中间值”，这个“中间值”就要暂存。",
        (
            proven("softmax", "from-output"),
            needs("softmax", "from-output", "P"),
            proven("softmax", "from-scores"),
            needs("softmax", "from-scores", "S"),
        ),
        zh="全站都建立在这一句上。补一点：它说的是公式，不是层。同一个梯度换一种写法，要留的就可能换一个；"
        "softmax 可以留输出 $P$，也可以留输入 $S$。",
        en="This whole site rests on it. One thing to add: it speaks of a formula, not of a layer. "
        "Written another way, the same gradient may use another value; softmax can work from its output $P$ or "
        "from its input $S$.",
    ),
    Entry(
        "principle-gradient",
        "right",
        r"$y = xW$，$\frac{\partial L}{\partial W} = x^\top \frac{\partial L}{\partial y}$，"
        r"$\frac{\partial L}{\partial x} = \frac{\partial L}{\partial y} W^\top$",
        (
            says_formula("linear", "no-bias", y="x @ W", dW="(x.mT @ dy).sum(0)", dx="dy @ W.mT"),
            proven("linear", "without-bias"),
        ),
        zh="带上批次和序列，$W$ 的梯度再对它们求和。",
        en="With a batch and a sequence, the gradient of $W$ is also summed over them.",
    ),
    Entry(
        "principle-saved",
        "right",
        r"为了算 $\partial L / \partial W$，需要保存输入 $x$",
        (says_saved("linear", "x"),),
        zh="有没有偏置都一样。反过来，权重不需要梯度时，$x$ 就[不必留](layers/linear.md#needed)。",
        en="Bias or no bias. Conversely, where the weight needs no gradient, $x$ "
        "[isn't kept](layers/linear.md#needed).",
    ),
    Entry(
        "section-linear-gradient",
        "right",
        r"$\frac{\partial L}{\partial W} = X^\top \frac{\partial L}{\partial Y}$，"
        r"$\frac{\partial L}{\partial X} = \frac{\partial L}{\partial Y} W^\top$",
        (says_formula("linear", "no-bias", y="x @ W", dW="(x.mT @ dy).sum(0)", dx="dy @ W.mT"),),
    ),
    Entry(
        "section-linear-needed",
        "right",
        "权重 $W$，但权重属于参数，不算 activation",
        (needs("linear", "without-bias", "x W"), keeps("linear", "no-bias", "cuda", "x")),
        zh="$W$ 在公式里用得到，但它本来就常驻显存，不因反向多占地方。本站的字节数也不计参数。",
        en="The formula does use $W$, but $W$ is in memory anyway and costs nothing extra. Our bytes leave "
        "parameters out too.",
    ),
    Entry(
        "section-linear-saved",
        "right",
        "所以，保存的中间值只有输入 $X$。",
        (says_saved("linear", "x"),),
        zh="没有哪个公式用到输出 $Y$。",
        en="No formula uses the output $Y$.",
    ),
    Entry(
        "section-dropout-gradient",
        "imprecise",
        r"$Y = X \odot M$，$\frac{\partial L}{\partial X} = \frac{\partial L}{\partial Y} \odot M$",
        (says_formula("dropout", "eager", y=("x * m", "x * n"), dx=("dy * m", "dy * n")),),
        zh="没有说明 $M$ 是哪一种掩码。若是 0 和 1 的掩码 $m$，两个式子都少一个因子 $1/(1-p)$；若把因子并进去，即 "
        "$n = m/(1-p)$，就都成立。原文的表里没有漏掉这个因子。",
        en="It doesn't say which mask $M$ is. If it is the mask $m$ of zeros and ones, both equations lack the factor "
        "$1/(1-p)$; if it includes the factor, as $n = m/(1-p)$ does, both hold. In its table the article has "
        "the factor.",
    ),
    Entry(
        "section-dropout-saved",
        "right",
        "所以保存的中间值只有掩码 $M$。",
        (
            says_saved("dropout", "M", of="eager inplace", called=dict(m="M", n="M")),
            dtype("dropout", "eager", "cuda", "m", "bool"),
            dtype("dropout", "eager", "cpu", "n", "bfloat16"),
            dtype("dropout", "inplace", "cuda", "n", "bfloat16"),
        ),
        zh="输入和输出都不存。掩码存成什么样要看实现：CUDA 上是布尔的 $m$；CPU 上和原地写法是放大过的 $n$，"
        "与激活同类型。",
        en="Neither input nor output is kept. In which form the mask is kept depends: on CUDA it is the "
        "boolean $m$; on the CPU and in place it is the scaled $n$, in the dtype of the activation.",
    ),
    Entry(
        "section-residual-gradient",
        "right",
        r"$\frac{\partial L}{\partial X} = \frac{\partial L}{\partial Z}$，"
        r"$\frac{\partial L}{\partial Y} = \frac{\partial L}{\partial Z}$",
        (says_formula("residual", "eager", y="x + a", dx="dy", da="dy"),),
        zh="上游梯度原样传给两边。",
        en="Both sides get the upstream gradient as it is.",
    ),
    Entry(
        "section-residual-saved",
        "right",
        "残差层没有需要保存的中间值。",
        (says_saved("residual", ""),),
        zh="两个加数若留了下来，是别的层要用。",
        en="If one of the two terms is kept, another layer needs it.",
    ),
    Entry(
        "section-layernorm-formula",
        "right",
        r"$y = \gamma \frac{x - \mu}{\sqrt{\sigma^2 + \epsilon}} + \beta$",
        (says_formula("layernorm", "eager", y=LAYERNORM),),
        zh=r"$\sigma^2$ 是除以个数、不是除以个数减一的方差。$\gamma$、$\beta$ 本站记作 $w$、$b$。",
        en=r"Here $\sigma^2$ is the variance that divides by the number of entries, not by one less. We write "
        r"$w$ and $b$ for $\gamma$ and $\beta$.",
    ),
    Entry(
        "section-layernorm-needed",
        "wrong",
        "backward 至少需要知道 forward 的输入 $x$，以及通常还会用到均值、方差或 rstd 之类的统计量",
        (
            says_indispensable("layernorm", "x"),
            proven("layernorm", "from-normalized"),
            needs("layernorm", "from-normalized", "x_hat rstd w"),
            proven("layernorm", "from-output"),
            needs("layernorm", "from-output", "y rstd w b"),
        ),
        zh=r"“至少”说重了。由 $\hat x$ 和 rstd，或者由输出 $y$ 和 rstd（$w$ 的元素都不为零时），都能算出全部梯度，"
        "两组公式都有证明。存 $x$ 是 PyTorch 的选择，不是非此不可。",
        en=r"“At least” goes too far. $\hat x$ and rstd give every gradient, and so do the output $y$ and rstd where "
        "$w$ has no zero; both pairs of formulas are proven. To keep $x$ is PyTorch's choice, not a necessity.",
    ),
    Entry(
        "section-layernorm-saved",
        "right",
        "里面内存占用占大头的是 $x$，所以中间值一般保存 $x$。",
        (
            says_saved("layernorm", "x", of="eager", among="x x_hat y"),
            keeps("layernorm", "eager", "cuda", "x mean rstd"),
        ),
        zh="PyTorch 正是存 $x$，另加每个词元的 mean 和 rstd，后两者小得多。",
        en="That is what PyTorch does: it keeps $x$, and with it mean and rstd of each token, which are far smaller.",
    ),
    Entry(
        "section-gelu-gradient",
        "right",
        r"$\frac{\partial L}{\partial x} = \frac{\partial L}{\partial y} \cdot \text{GeLU}'(x)$",
        (says_formula("gelu", "eager", g=GELU, dz=GELU_SLOPE),),
        zh="原文的 $x$、$y$ 就是表里的 $z$、$g$。",
        en="Its $x$ and $y$ here are $z$ and $g$ in its table.",
    ),
    Entry(
        "section-gelu-upstream",
        "imprecise",
        r"$\frac{\partial L}{\partial Z}$ 是上游传回的梯度。",
        (proven("gelu", "exact"),),
        zh=r"笔误。这一节没有 $Z$，上面的公式写的是 $\frac{\partial L}{\partial y}$，公式是对的。",
        en=r"A slip of the pen. This section has no $Z$; the formula above it says $\frac{\partial L}{\partial y}$, "
        "and is right.",
    ),
    Entry(
        "section-gelu-saved",
        "right",
        "所以为了 backward，GeLU 需要保存的中间值是 $x$。",
        (says_saved("gelu", "z"),),
        zh="精确的和 tanh 近似的都存输入。只存输出不行：GELU 不单调，同一个输出可以来自两个输入。",
        en="Both exact GELU and its tanh approximation keep the input. The output alone would not do: GELU "
        "isn't monotone, so one output can come from two inputs.",
    ),
    Entry(
        "section-softmax-gradient",
        "right",
        r"$\frac{\partial L}{\partial z} = y \odot \left( \frac{\partial L}{\partial y} - "
        r"\langle \frac{\partial L}{\partial y}, y \rangle \right)$",
        (
            says_formula(
                "softmax", "eager", P="exp(S) / exp(S).sum(-1, keepdim=True)", dS="P * (dP - (dP * P).sum(-1, True))"
            ),
            proven("softmax", "from-output"),
        ),
        zh="原文的 $z$、$y$ 就是表里的 $S$、$P$，内积逐行取。",
        en="Its $z$ and $y$ here are $S$ and $P$ in its table; the inner product is taken row by row.",
    ),
    Entry(
        "section-softmax-saved",
        "right",
        "所以为了 backward，Softmax 需要保存的中间值是 $y$。",
        (says_saved("softmax", "P"), held_by("softmax", "eager", "P", "output")),
        zh="存的就是输出那一块存储，不另占地方。",
        en="What is kept is the storage of the output itself, so it takes no extra room.",
    ),
    Entry(
        "cell-embedding-formula",
        "right",
        r"$x = \mathrm{Embed}(\mathrm{tokens})$",
        (says_formula("embedding", "eager", x="W[tokens]"),),
        zh="按 tokens 取权重的行。",
        en="It takes the rows of the weight that the tokens name.",
    ),
    Entry(
        "cell-embedding-saved",
        "right",
        r"embedding backward 需要 $\mathrm{tokens}$；$x$ 作为后续 Transformer block 输入通常会被保存或 checkpoint "
        "重算",
        (says_saved("embedding", "tokens"), held_by("gpt2", "eager", "x", "NativeLayerNormBackward0.input")),
        zh="归属也说对了：词嵌入自己只存 tokens，$x$ 由后面的 LayerNorm 持有。",
        en="So is who owns what: the embedding keeps the tokens only, $x$ is held by the LayerNorm after it.",
    ),
    Entry(
        "cell-embedding-shape",
        "right",
        r"$\mathrm{tokens}: B \times T$，$x: B \times T \times D$",
        (
            says_shapes("embedding layernorm", tokens="B T", x="B T D"),
            dtype("embedding", "eager", "cuda", "tokens", "int64"),
        ),
        zh="tokens 是 int64，字节数不随激活的类型变。",
        en="The tokens are int64, whatever the dtype of the activations.",
    ),
    Entry(
        "cell-layernorm-1-formula",
        "right",
        r"$u = \mathrm{LN}_1(x)$",
        (says_formula("layernorm", "eager", y=LAYERNORM),),
    ),
    Entry(
        "cell-layernorm-1-saved",
        "imprecise",
        r"LayerNorm backward 通常需要输入 $x$ 或归一化结果 $\hat{x}$，以及 $\mathrm{mean}/\mathrm{rstd}$",
        (
            says_saved("layernorm", "x mean rstd", "x_hat mean rstd"),
            needs("layernorm", "from-normalized", "x_hat rstd w"),
            proven("layernorm", "from-normalized"),
        ),
        zh=r"两套里 PyTorch 只用一套：存 $x$、mean、rstd，从不存 $\hat x$。真存 $\hat x$ 的话，有 rstd 就够，用不着 "
        "mean。",
        en=r"PyTorch takes one of the two: $x$, mean and rstd, and never $\hat x$. With $\hat x$ kept, rstd would be "
        "enough; mean isn't needed then.",
    ),
    Entry(
        "cell-layernorm-1-shape",
        "imprecise",
        r"$x: B \times T \times D$，$\hat{x}: B \times T \times D$，$\mathrm{mean}: B \times T$，"
        r"$\mathrm{rstd}: B \times T$",
        (
            says_shapes("layernorm", x="B T D", x_hat="B T D", mean="B T", rstd="B T"),
            dtype("layernorm", "eager", "cuda", "mean", "float32"),
            dtype("layernorm", "eager", "cuda", "rstd", "float32"),
            dtype("layernorm", "eager", "cpu", "mean", "bfloat16"),
            dtype("layernorm", "eager", "cpu", "rstd", "bfloat16"),
        ),
        zh=r"形状都对，但 PyTorch 不存 $\hat x$。还要看类型：激活是 bf16 时，mean、rstd 在 CUDA 上是 fp32，在 CPU 上是 "
        "bf16。",
        en=r"The shapes are right, but PyTorch doesn't keep $\hat x$. And dtypes matter: with bf16 activations, mean "
        "and rstd are fp32 on CUDA and bf16 on the CPU.",
    ),
    Entry(
        "cell-qkv-formula",
        "right",
        r"$Q = uW_Q,\ K = uW_K,\ V = uW_V$",
        (
            says_formula(
                "qkv",
                "eager",
                Q="tensordot(u, W_Q, 1).transpose(1, 2)",
                K="tensordot(u, W_K, 1).transpose(1, 2)",
                V="tensordot(u, W_V, 1).transpose(1, 2)",
            ),
        ),
        zh="每一路再拆成多头。",
        en="Each of the three is then split into heads.",
    ),
    Entry(
        "cell-qkv-saved",
        "right",
        "Linear backward 需要输入 $u$；attention backward 需要 $Q,K,V$ 或通过 recompute 得到它们",
        (
            says_saved("gpt2", "u Q K V", among="u Q K V"),
            never_keeps("qkv", "Q K V"),
            keeps("scores", "eager", "cuda", "Q K"),
            keeps("attention-value", "eager", "cuda", "P_dropped V"),
        ),
        zh="归属也分清了：三个线性层只存 $u$，共用一块；$Q$、$K$ 由打分的矩阵乘法持有，$V$ 由加权求和持有。"
        "逐算子的实现不重算。",
        en="It says whose they are: the three linear layers keep $u$ only, one storage for all; $Q$ and "
        "$K$ are held by the product that makes the scores, $V$ by the weighted sum. Eager code recomputes "
        "nothing.",
    ),
    Entry(
        "cell-qkv-shape",
        "right",
        r"$u: B \times T \times D$，$Q: B \times h \times T \times d$，$K: B \times h \times T \times d$，"
        r"$V: B \times h \times T \times d$",
        (says_shapes("qkv scores attention-value", u="B T D", Q="B h T d", K="B h T d", V="B h T d"),),
    ),
    Entry(
        "cell-scores-formula",
        "right",
        r"$S = \frac{QK^\top}{\sqrt d}$",
        (says_formula("scores", "eager", S="Q @ K.mT / d**0.5"),),
    ),
    Entry(
        "cell-scores-saved",
        "imprecise",
        "普通 softmax backward 通常不必须保存 $S$；某些实现可能保存 mask 后 scores；FlashAttention "
        "类实现通常不保存完整 $S$",
        (
            says_saved("gpt2", "", "S_masked", among="S S_masked"),
            keeps("scores", "eager", "cuda", "Q K"),
            never_keeps("softmax", "S"),
            never_keeps("mask", "S S_masked"),
            never_keeps("sdpa", "S S_masked"),
        ),
        zh="$S$ 不必存，说得对，FlashAttention 也确实不存。“可能保存”可以说定：逐算子算时，加掩码前后的打分都不存；"
        "这一行真正存下的是 $Q$ 和 $K$。",
        en="That $S$ needn't be kept is right, and FlashAttention indeed doesn't keep it. The “may keep” can be "
        "settled: eager code keeps the scores neither before nor after the mask; what this row does keep is $Q$ "
        "and $K$.",
    ),
    Entry(
        "cell-scores-shape",
        "imprecise",
        r"$S: B \times h \times T \times T$",
        (says_shapes("scores mask softmax", S="B h T T"),),
        zh="形状对，但没有哪个节点留着 $S$。列在这里，容易让人把它算进显存。",
        en="The shape is right, but no node holds on to $S$. Listed here, it is easily counted as memory.",
    ),
    Entry(
        "cell-mask-formula",
        "right",
        r"$S_{\mathrm{mask}} = S + M_{\mathrm{attn}}$",
        (says_formula("mask", "additive", S_masked="S + A"),),
        zh="这是相加的写法。用 `torch.where` 改写打分是另一个公式，存的东西也不同，见下一行。",
        en="This is the mask that is added. Writing into the scores by `torch.where` is another formula and keeps "
        "something else; see the next line.",
    ),
    Entry(
        "cell-mask-saved",
        "depends",
        "causal/padding mask 通常可由输入或规则重构，不一定作为大激活保存",
        (
            says_saved("mask", "", "keep"),
            keeps("mask", "additive", "cuda", ""),
            needs("mask", "filled", "keep"),
            dtype("mask", "where", "cuda", "keep", "bool"),
        ),
        zh="“不一定”说得对，要看写法：相加什么也不存；`torch.where` 存布尔掩码，反向靠它把挡住的位置清零。",
        en="“Not necessarily” is right, for it depends on the code: adding keeps nothing; `torch.where` keeps the "
        "boolean mask, by which backward zeroes what was hidden.",
    ),
    Entry(
        "cell-mask-shape",
        "depends",
        r"$M_{\mathrm{attn}}: 1 \times 1 \times T \times T$ 或 $B \times 1 \times 1 \times T$ 或 "
        r"$B \times 1 \times T \times T$",
        (
            says_shapes(
                "mask",
                called=dict(A="M_causal", keep="M_causal", forbid="M_causal", real="M_padding", seen="M_both"),
                M_causal="T T",
                M_padding="B T",
                M_both="B T T",
            ),
            dtype("mask", "where", "cuda", "keep", "bool"),
            dtype("mask", "padding", "cuda", "real", "bool"),
            dtype("mask", "combined-in-forward", "cuda", "seen", "bool"),
        ),
        zh="依次是因果、填充、两者求与。留不留看写法：相加不留；`torch.where`、`masked_fill` 都留，而且是布尔。",
        en="A causal mask, a padding mask, and both combined. Whether one is kept depends on the code: added it is "
        "not; under `torch.where` and `masked_fill` it is, as booleans.",
    ),
    Entry(
        "cell-softmax-formula",
        "right",
        r"$P = \mathrm{softmax}(S_{\mathrm{mask}})$",
        (says_formula("softmax", "eager", P="exp(S) / exp(S).sum(-1, keepdim=True)"),),
    ),
    Entry(
        "cell-softmax-saved",
        "right",
        "标准 eager attention 通常保存 softmax 概率 $P$，用于 softmax backward；FlashAttention 不保存完整 $P$，"
        "而保存较小统计量并在 backward 重算",
        (
            says_saved("softmax", "P"),
            held_by("softmax", "eager", "P", "output"),
            never_keeps("sdpa", "P", of="flash"),
            needs("sdpa", "from-lse", "Q K V O lse"),
            proven("sdpa", "from-lse"),
        ),
        zh="两句都对。逐算子的实现里，$P$ 与输出是同一块存储。FlashAttention 的统计量是每行一个 log-sum-exp；"
        "重算 $P$ 靠它和 $Q$、$K$，此外还要留 $V$ 和 $O$。",
        en="Both halves are right. In eager code $P$ is the very storage of the output. FlashAttention's statistic is "
        "one log-sum-exp for each row; with $Q$ and $K$ it gives $P$ again, and $V$ and $O$ are kept too.",
    ),
    Entry("cell-softmax-shape", "right", r"$P: B \times h \times T \times T$", (says_shapes("softmax", P="B h T T"),)),
    Entry(
        "cell-attention-dropout-formula",
        "right",
        r"$\tilde P = \mathrm{Dropout}(P)=\frac{m\odot P}{1-p}$",
        (says_formula("attention-dropout", "eager", P_dropped="m * P / (1 - p)"),),
        zh="因子 $1/(1-p)$ 没有漏。",
        en="The factor $1/(1-p)$ is there.",
    ),
    Entry(
        "cell-attention-dropout-saved",
        "imprecise",
        r"严谨地说，softmax backward 需要 $P$，dropout backward 需要 mask $m$；$\tilde P$ 可由 $P,m$ 重构，"
        "也可能被实现直接保存",
        (
            says_saved("gpt2", "P m", "P m P_dropped", among="P m n P_dropped"),
            held_by("gpt2", "eager", "P", "SoftmaxBackward0.result"),
            held_by("gpt2", "eager", "P_dropped", "BmmBackward0.self"),
            dtype("attention-dropout", "eager", "cuda", "m", "bool"),
            keeps("attention-dropout", "eager", "cpu", "n"),
        ),
        zh=r"“也可能”可以说定：逐算子算时 $\tilde P$ 一定在，后面的矩阵乘法存着它；$P$ 由 softmax 存着，也在。"
        "掩码看设备，CUDA 存布尔的 $m$，CPU 存放大过的 $n$。",
        en=r"The “may” can be settled: in eager code $\tilde P$ is always there, kept by the product that follows; "
        "so is $P$, kept by softmax. The mask depends on the device: the boolean $m$ on CUDA, the scaled $n$ on "
        "the CPU.",
    ),
    Entry(
        "cell-attention-dropout-shape",
        "depends",
        r"$P: B \times h \times T \times T$，$m: B \times h \times T \times T$，"
        r"$\tilde P: B \times h \times T \times T$",
        (
            says_shapes("softmax attention-dropout attention-value", P="B h T T", m="B h T T", P_dropped="B h T T"),
            dtype("attention-dropout", "eager", "cuda", "m", "bool"),
            dtype("attention-dropout", "eager", "cpu", "n", "bfloat16"),
        ),
        zh=r"形状都对，$P$ 和 $\tilde P$ 也都在。$m$ 只在 CUDA 上存，是布尔；CPU 上换成与激活同类型的 $n$，形状一样，"
        "字节更多。",
        en=r"The shapes are right, and $P$ and $\tilde P$ are both there. $m$ is kept on CUDA only, as booleans; the "
        "CPU keeps $n$ in its stead, of the same shape, in the dtype of the activation and so larger.",
    ),
    Entry(
        "cell-attention-value-formula",
        "right",
        r"$O = \tilde P V$",
        (says_formula("attention-value", "eager", O="P_dropped @ V"),),
    ),
    Entry(
        "cell-attention-value-saved",
        "right",
        r"matmul backward 需要 $\tilde P$ 和 $V$；$\tilde P$ 可由 $P,m$ 重构；后续输出投影需要 $O$ reshape 后的 "
        "$c$ 作为输入",
        (
            says_saved("attention-value", "P_dropped V"),
            keeps("out-proj", "no-bias", "cuda", "c"),
            never_keeps("attention-value", "O"),
        ),
        zh=r"$\tilde P$ 和 $V$ 由这次矩阵乘法持有，$c$ 由输出投影持有。$\tilde P$ 虽可重构，逐算子的实现是直接存的。",
        en=r"This product holds $\tilde P$ and $V$, the output projection holds $c$. $\tilde P$ could be "
        "recomputed, but eager code keeps it.",
    ),
    Entry(
        "cell-attention-value-shape",
        "imprecise",
        r"$\tilde P: B \times h \times T \times T$，$V: B \times h \times T \times d$，"
        r"$O: B \times h \times T \times d$，$c: B \times T \times D$",
        (
            says_shapes("attention-value out-proj", P_dropped="B h T T", V="B h T d", O="B h T d", c="B T D"),
            never_keeps("gpt2", "O"),
            held_by("gpt2", "eager", "c", "MmBackward0.self"),
            needs("sdpa", "from-lse", "Q K V O lse"),
        ),
        zh="形状都对，但逐算子的实现不留 $O$：各头拼成 $c$ 以后，图里留的是 $c$。要留 $O$ 的是 FlashAttention。",
        en="The shapes are right, but eager code doesn't keep $O$: once its heads are side by side in $c$, the graph "
        "holds $c$. It is FlashAttention that keeps $O$.",
    ),
    Entry("cell-out-proj-formula", "right", "$a = cW_O$", (says_formula("out-proj", "no-bias", a="c @ W_O"),)),
    Entry(
        "cell-out-proj-saved",
        "right",
        "Linear backward 需要输入 $c$；通常不因该 Linear 本身必须保存输出 $a$",
        (says_saved("out-proj", "c"), never_keeps("gpt2", "a")),
        zh="“通常”二字也可以去掉：线性层的反向从不用自己的输出。",
        en="The “usually” can go: a linear layer's backward never uses its own output.",
    ),
    Entry(
        "cell-out-proj-shape",
        "imprecise",
        r"$c: B \times T \times D$，$a: B \times T \times D$",
        (says_shapes("out-proj residual", c="B T D", a="B T D"), never_keeps("gpt2", "a")),
        zh="形状对，但 $a$ 没有人存，后面的相加也不存它。上面一格说的是对的。",
        en="The shapes are right, but nobody keeps $a$, and the addition after it doesn't either. The column to its "
        "left has it right.",
    ),
    Entry("cell-residual-1-formula", "right", "$x' = x + a$", (says_formula("residual", "eager", y="x + a"),)),
    Entry(
        "cell-residual-1-saved",
        "right",
        "residual add 本身通常不需要保存大中间值；但 $x'$ 作为后续 LayerNorm/FFN 输入通常会被保存或重算",
        (
            says_saved("residual", ""),
            held_by("gpt2", "eager", "x_2", "NativeLayerNormBackward0.input"),
            held_by("gpt2", "eager", "v", "AddmmBackward0.mat1"),
        ),
        zh="相加什么也不存，$x'$ 由 LayerNorm 2 持有。FFN 的输入其实是 $v$，不是 $x'$。",
        en="The addition keeps nothing, and LayerNorm 2 holds $x'$. (The input of the FFN is $v$, though, not $x'$.)",
    ),
    Entry(
        "cell-residual-1-shape",
        "right",
        r"$x': B \times T \times D$",
        (says_shapes("layernorm", x="B T D"),),
        zh="这一块归 LayerNorm 2，只算一次。",
        en="It belongs to LayerNorm 2 and counts once.",
    ),
    Entry(
        "cell-layernorm-2-formula",
        "right",
        r"$v = \mathrm{LN}_2(x')$",
        (says_formula("layernorm", "eager", y=LAYERNORM),),
    ),
    Entry(
        "cell-layernorm-2-saved",
        "imprecise",
        r"LayerNorm backward 通常需要输入 $x'$ 或归一化结果 $\hat{x}'$，以及 $\mathrm{mean}/\mathrm{rstd}$",
        (
            says_saved("gpt2", "x_2 mean_2 rstd_2", "x_hat mean_2 rstd_2", among="x_2 x_hat mean_2 rstd_2"),
            needs("layernorm", "from-normalized", "x_hat rstd w"),
        ),
        zh=r"同 LayerNorm 1：PyTorch 存 $x'$、mean、rstd，不存 $\hat x'$；有了 $\hat x'$ 和 rstd 就用不着 mean。",
        en=r"As for LayerNorm 1: PyTorch keeps $x'$, mean and rstd, not $\hat x'$; and $\hat x'$ with rstd would do "
        "without mean.",
    ),
    Entry(
        "cell-layernorm-2-shape",
        "imprecise",
        r"$x': B \times T \times D$，$\hat{x}': B \times T \times D$，$\mathrm{mean}: B \times T$，"
        r"$\mathrm{rstd}: B \times T$",
        (
            says_shapes("layernorm", x="B T D", x_hat="B T D", mean="B T", rstd="B T"),
            dtype("gpt2", "eager", "cuda", "mean_2", "float32"),
            dtype("gpt2", "eager", "cuda", "rstd_2", "float32"),
        ),
        zh=r"形状都对，但 PyTorch 不存 $\hat x'$；激活是 bf16 时，mean、rstd 在 CUDA 上是 fp32。",
        en=r"The shapes are right, but PyTorch doesn't keep $\hat x'$; with bf16 activations, mean "
        "and rstd are fp32 on CUDA.",
    ),
    Entry(
        "cell-ffn-gelu-linear-1-formula",
        "right",
        "$z = vW_1 + b_1$",
        (says_formula("ffn-gelu", "eager", z="v @ W1 + b1"),),
    ),
    Entry(
        "cell-ffn-gelu-linear-1-saved",
        "right",
        "Linear backward 需要输入 $v$；GELU backward 需要 $z$ 或等价中间值",
        (says_saved("ffn-gelu", "v z", among="v z"), keeps("gelu", "eager", "cuda", "z")),
        zh="$v$ 和 $z$ 都存。PyTorch 存的就是 $z$ 本身，没有用别的“等价中间值”。",
        en="$v$ and $z$ are both kept. PyTorch keeps $z$ itself, no “equivalent intermediate value”.",
    ),
    Entry(
        "cell-ffn-gelu-linear-1-shape",
        "right",
        r"$v: B \times T \times D$，$z: B \times T \times M$",
        (says_shapes("ffn-gelu", v="B T D", z="B T M"),),
    ),
    Entry(
        "cell-gelu-formula",
        "right",
        r"$g = \mathrm{GELU}(z)$",
        (
            says_formula("gelu", "eager", g=GELU),
            keeps("gelu", "eager", "cuda", "z"),
            keeps("gelu", "tanh", "cuda", "z"),
        ),
        zh="GELU 有精确的和 tanh 近似的两种，存的一样。",
        en="There is an exact GELU and a tanh approximation; they keep the same.",
    ),
    Entry(
        "cell-gelu-saved",
        "right",
        "GELU backward 需要 $z$ 或等价中间值；FFN Linear 2 backward 需要输入 $g$",
        (
            says_saved("ffn-gelu", "z g", among="z g"),
            held_by("ffn-gelu", "eager", "z", "GeluBackward0.self"),
            held_by("ffn-gelu", "eager", "g", "AddmmBackward0.mat1"),
        ),
        zh="$z$ 归 GELU，$g$ 归后面的线性层，两块都在。",
        en="GELU holds $z$, the linear layer after it holds $g$, and both are there.",
    ),
    Entry(
        "cell-gelu-shape",
        "right",
        r"$z: B \times T \times M$，$g: B \times T \times M$",
        (says_shapes("ffn-gelu", z="B T M", g="B T M"),),
    ),
    Entry(
        "cell-ffn-swiglu-linear-1-formula",
        "right",
        r"$z_1 = vW_{\mathrm{gate}},\ z_2 = vW_{\mathrm{up}}$",
        (says_formula("ffn-swiglu", "eager", z1="v @ W_gate", z2="v @ W_up"),),
    ),
    Entry(
        "cell-ffn-swiglu-linear-1-saved",
        "right",
        "两个 Linear backward 需要输入 $v$；SwiGLU backward 需要 $z_1,z_2$ 或等价中间值",
        (says_saved("ffn-swiglu", "v z1 z2", of="eager recomputing", among="v z1 z2"),),
        zh="$v$、$z_1$、$z_2$ 都存；两个线性层共用一块 $v$，只算一次。",
        en="$v$, $z_1$ and $z_2$ are all kept; the two linear layers share one $v$, which counts once.",
    ),
    Entry(
        "cell-ffn-swiglu-linear-1-shape",
        "right",
        r"$v: B \times T \times D$，$z_1: B \times T \times M$，$z_2: B \times T \times M$",
        (says_shapes("ffn-swiglu", of="eager recomputing", v="B T D", z1="B T M", z2="B T M"),),
    ),
    Entry(
        "cell-swiglu-formula",
        "right",
        r"$g = \mathrm{SiLU}(z_1)\odot z_2$",
        (says_formula("swiglu", "eager", g="z1 * sigmoid(z1) * z2"),),
    ),
    Entry(
        "cell-swiglu-saved",
        "depends",
        "SwiGLU backward 需要 $z_1,z_2$ 或等价中间值；后续 Linear backward 需要输入 $g$",
        (
            says_saved("swiglu", "z1 z2", of="eager recomputing"),
            keeps("swiglu", "eager", "cuda", "z1 a z2"),
            needs("swiglu", "recomputing", "z1 z2"),
            proven("swiglu", "recomputing"),
        ),
        zh=r"按公式有 $z_1$、$z_2$ 就够，反向时重算的写法只存这两个。逐算子算时还多存一个 $\mathrm{SiLU}(z_1)$，"
        "因为它是乘法的一个因子。",
        en="By the formula $z_1$ and $z_2$ are enough, and code that recomputes in the backward keeps these two. Op "
        r"by op, $\mathrm{SiLU}(z_1)$ is kept as well, being a factor of the product.",
    ),
    Entry(
        "cell-swiglu-shape",
        "depends",
        r"$z_1: B \times T \times M$，$z_2: B \times T \times M$，$g: B \times T \times M$",
        (
            says_shapes("ffn-swiglu", of="eager recomputing", z1="B T M", z2="B T M", g="B T M"),
            keeps("ffn-swiglu", "eager", "cuda", "v z1 a z2 g"),
            keeps("ffn-swiglu", "recomputing", "cuda", "v z1 z2"),
        ),
        zh=r"形状都对。逐算子算时，还该加上同样大的 $\mathrm{SiLU}(z_1)$；反向时重算的 FFN 则连 $g$ 也不存。",
        en=r"The shapes are right. Op by op, $\mathrm{SiLU}(z_1)$, just as large, should be added; an FFN that "
        "recomputes in the backward doesn't even keep $g$.",
    ),
    Entry(
        "cell-ffn-linear-2-formula", "right", "$y = gW_2 + b_2$", (says_formula("ffn-gelu", "eager", y="g @ W2 + b2"),)
    ),
    Entry(
        "cell-ffn-linear-2-saved",
        "right",
        "Linear backward 需要输入 $g$；该 Linear 本身不必须保存输出 $y$",
        (says_saved("ffn-gelu", "g", among="g y"), held_by("ffn-gelu", "eager", "g", "AddmmBackward0.mat1")),
        zh="只存 $g$。",
        en="Only $g$ is kept.",
    ),
    Entry(
        "cell-ffn-linear-2-shape",
        "imprecise",
        r"$g: B \times T \times M$，$y: B \times T \times D$",
        (says_shapes("ffn-gelu ffn-dropout residual", g="B T M", y="B T D"), never_keeps("gpt2", "y")),
        zh="形状对，但 $y$ 没有人存：后面的 dropout 和相加都用不到它。",
        en="The shapes are right, but nobody keeps $y$: the dropout and the addition after it don't use it.",
    ),
    Entry(
        "cell-ffn-dropout-formula",
        "right",
        r"$\tilde y = \mathrm{Dropout}(y)=\frac{m_{\mathrm{ffn}}\odot y}{1-p}$",
        (says_formula("ffn-dropout", "eager", y_dropped="m * y / (1 - p)"),),
        zh="因子 $1/(1-p)$ 没有漏。",
        en="The factor $1/(1-p)$ is there.",
    ),
    Entry(
        "cell-ffn-dropout-saved",
        "depends",
        r"dropout backward 需要 mask $m_{\mathrm{ffn}}$；若后续需要，可保存或重算 $y,\tilde y$",
        (
            says_saved("ffn-dropout", "m"),
            keeps("ffn-dropout", "eager", "cuda", "m"),
            dtype("ffn-dropout", "eager", "cuda", "m", "bool"),
            keeps("ffn-dropout", "eager", "cpu", "n"),
            keeps("ffn-dropout", "inplace", "cuda", "n"),
            keeps("ffn-dropout", "off", "cuda", ""),
            never_keeps("gpt2", "y y_dropped"),
        ),
        zh=r"CUDA 上存布尔的 $m$，说得对；CPU 上和原地写法存的是放大过的 $n$；推理时什么也不存。$y$、$\tilde y$ "
        "后续并不需要，都不存。",
        en="True on CUDA, which keeps the boolean $m$; the CPU, and in-place code, keep the scaled $n$; in eval "
        r"mode nothing is kept. What follows doesn't need $y$ or $\tilde y$, so neither is.",
    ),
    Entry(
        "cell-ffn-dropout-shape",
        "imprecise",
        r"$y: B \times T \times D$，$m_{\mathrm{ffn}}: B \times T \times D$，$\tilde y: B \times T \times D$",
        (says_shapes("ffn-dropout residual", y="B T D", m="B T D", y_dropped="B T D"),),
        zh=r"形状都对，留下的只有掩码；$y$、$\tilde y$ 没有人存。",
        en=r"The shapes are right, but only the mask is kept; $y$ and $\tilde y$ are not.",
    ),
    Entry(
        "cell-residual-2-formula",
        "right",
        r"$\mathrm{out} = x' + \tilde y$",
        (says_formula("residual", "eager", y="x + a"),),
    ),
    Entry(
        "cell-residual-2-saved",
        "right",
        r"residual add 本身通常不需要额外保存大中间值；$\mathrm{out}$ 作为下一层输入通常会被保存或 checkpoint 重算",
        (says_saved("residual", ""), held_by("gpt2", "eager", "x", "NativeLayerNormBackward0.input")),
        zh="相加什么也不存，out 就是下一个块的 $x$，由那里的 LayerNorm 1 持有。",
        en="The addition keeps nothing; out is the next block's $x$, held by its LayerNorm 1.",
    ),
    Entry(
        "cell-residual-2-shape",
        "right",
        r"$\mathrm{out}: B \times T \times D$",
        (says_shapes("layernorm", x="B T D"),),
        zh="它记在下一个块的账上。",
        en="It stands in the next block's account.",
    ),
    Entry(
        "cell-lm-head-formula",
        "right",
        r"$\ell = x_{\mathrm{final}}W_{\mathrm{vocab}}$",
        (says_formula("lm-head", "no-bias", logits="x @ W_vocab"),),
        zh=r"$x_{\mathrm{final}}$ 是[最后的归一化](layers/final-norm.md)的输出，原文的表里没有那一行。",
        en=r"$x_{\mathrm{final}}$ is the output of the [final norm](layers/final-norm.md), which has no row "
        "in the article's table.",
    ),
    Entry(
        "cell-lm-head-saved",
        "wrong",
        r"Linear backward 需要输入 $x_{\mathrm{final}}$；普通 cross entropy 可能保存 logits；fused cross entropy "
        "可能不完整保存 logits",
        (
            says_saved("cross-entropy", "logits", "", among="logits logp"),
            keeps("lm-head", "no-bias", "cuda", "x"),
            keeps("cross-entropy", "eager", "cuda", "logp t n"),
            held_by("cross-entropy", "eager", "logp", "LogSoftmaxBackward0.result"),
            held_by("cross-entropy", "eager", "logp", "NllLossBackward0.self"),
            keeps("cross-entropy", "compiled", "cpu", "logits t shift logsum n"),
            never_keeps("linear-cross-entropy", "logits logp", of="chunked chunked-per-token"),
        ),
        zh=r"第一句对，线性层存 $x_{\mathrm{final}}$。第二句不对：普通 cross entropy 存的不是 logits，"
        "是同样大的对数概率，softmax 与 NLL 两个节点共用这一块；经 `torch.compile` 编译才存 logits。"
        "第三句对，[与 LM head 合一](layers/linear-cross-entropy.md)的分块写法连对数概率也不存。",
        en=r"The first part is right: the linear layer keeps $x_{\mathrm{final}}$. The second isn't: ordinary cross "
        "entropy keeps not the logits but log-probabilities, just as large, one storage for the nodes of "
        "log-softmax and NLL; it is the compiled one that keeps logits. The third is right: "
        "[fused with the LM head](layers/linear-cross-entropy.md), in chunks, not even those are kept.",
    ),
    Entry(
        "cell-lm-head-shape",
        "imprecise",
        r"$x_{\mathrm{final}}: B \times T \times D$，$\ell: B \times T \times \mathrm{Vocab}$",
        (
            says_shapes("lm-head cross-entropy", x="B T D", logits="B T V"),
            dtype("cross-entropy", "eager", "cuda", "logp", "bfloat16"),
            dtype("cross-entropy", "float32", "cuda", "logp", "float32"),
        ),
        zh=r"形状对，但留下的那一块是对数概率，不是 $\ell$。先转成 fp32 再算损失，它就是 fp32 的，字节加倍。",
        en=r"The shapes are right, but what is kept in the second is log-probabilities, not $\ell$. If the logits "
        "are cast to fp32 first, it is fp32 and twice as large as in bf16.",
    ),
)
