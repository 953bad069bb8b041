# The figures, as PNG for the report and PDF for a paper.
rule figures:
    input:
        runs=rules.tables.input.runs,
        partitions=expand(
            "<results>/partitions/{dataset}/seed{seed}.npz",
            dataset=DATASETS,
            seed=experiment.seeds[0],
        ),
        source=[SOURCE / "figures.py", SOURCE / "tables.py"],
    output:
        figure1=report(
            "<results>/figures/figure1.png",
            caption="../report/convergence.rst",
            category="Figures",
            labels={"figure": "1", "shows": "accuracy by round"},
        ),
        figure2=report(
            "<results>/figures/figure2.png",
            caption="../report/convergence.rst",
            category="Figures",
            labels={"figure": "2", "shows": "accuracy by round, second dataset"},
        ),
        figure3a=report(
            "<results>/figures/figure3a.png",
            caption="../report/figure3a.rst",
            category="Figures",
            labels={"figure": "3a", "shows": "accuracy by number of contexts"},
        ),
        figure3b=report(
            "<results>/figures/figure3b.png",
            caption="../report/figure3b.rst",
            category="Figures",
            labels={"figure": "3b", "shows": "methods side by side"},
        ),
        figure4=report(
            "<results>/figures/figure4.png",
            caption="../report/figure4.rst",
            category="Figures",
            labels={"figure": "4", "shows": "contexts of the clients by round"},
        ),
        figure5a=report(
            "<results>/figures/figure5a.png",
            caption="../report/figure5a.rst",
            category="Figures",
            labels={"figure": "5a", "shows": "distances of models by round"},
        ),
        figure5b=report(
            "<results>/figures/figure5b.png",
            caption="../report/figure5b.rst",
            category="Figures",
            labels={"figure": "5b", "shows": "k-means iterations by round"},
        ),
        heuristic=report(
            "<results>/figures/heuristic.png",
            caption="../report/heuristic.rst",
            category="Figures",
            labels={"figure": "heuristic", "shows": "e(K) of cgpfl_heur"},
        ),
        mu=report(
            "<results>/figures/mu.png",
            caption="../report/mu.rst",
            category="Figures",
            labels={"figure": "mu", "shows": "chosen K by mu"},
        ),
        pdfs=expand(
            "<results>/figures/{name}.pdf",
            name=[
                "figure1",
                "figure2",
                "figure3a",
                "figure3b",
                "figure4",
                "figure5a",
                "figure5b",
                "heuristic",
                "mu",
            ],
        ),
    log:
        "<results>/logs/figures.log",
    benchmark:
        "<results>/benchmarks/figures.tsv"
    conda:
        "../../environment.yml"
    params:
        runs=rules.tables.params.runs,
        datasets=DATASETS,
        methods=experiment.figures or [],
    message:
        "Drawing figures."
    script:
        "../scripts/figures.py"
