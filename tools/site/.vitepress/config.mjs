// The documentation site: the pages of docs/ in the order of navigation.json. The pages stay
// readable at a git forge, so their links name files; this file translates them.
import { existsSync, readFileSync } from 'node:fs'
import path from 'node:path'
import { fileURLToPath } from 'node:url'
import { defineConfig } from 'vitepress'
import { searchOptions } from '../search.mjs'

const repository = 'https://github.com/numaform/numaform'
const site = fileURLToPath(new URL('..', import.meta.url))
const docs = path.join(site, '../../docs')
const navigation = JSON.parse(readFileSync(path.join(site, 'navigation.json'), 'utf8'))

// heading returns the first heading of a page.
function heading(page) {
  return readFileSync(path.join(docs, page), 'utf8').match(/^# (.+)$/m)[1].replaceAll('`', '')
}

// route returns the address of a page: the README.md of a directory is its index.
function route(page) {
  return '/' + page.replace(/(^|\/)README\.md$/, '$1index.md').replace(/\.md$/, '')
}

// slugify returns the anchor that GitHub and Forgejo generate for a heading. test/links
// checks the links to these anchors.
function slugify(text) {
  return text.trim().toLowerCase().replace(/[^\p{L}\p{Nd}\-_ ]/gu, '').replaceAll(' ', '-')
}

// inSite says whether the site has a page or image of the repository. docs/adr is for
// contributors, who read it beside the code.
function inSite(file) {
  return file.startsWith('docs/') && !file.startsWith('docs/adr/') && /\.(md|svg|png)$/.test(file)
}

// translateLinks is a rule of markdown-it: a link to a file outside of the site leads to the
// repository, and a README.md is the index of its directory.
function translateLinks(state) {
  const visit = (tokens) => {
    for (const token of tokens) {
      const href = token.type === 'link_open' ? token.attrGet('href') : null
      if (href && !/^([a-z]+:|#|\/)/.test(href)) {
        const [file, anchor] = href.split('#')
        const target = path.posix.join('docs', path.posix.dirname(state.env.relativePath), file)
        const suffix = anchor === undefined ? '' : '#' + anchor
        if (!inSite(target)) {
          if (!existsSync(path.join(docs, '..', target))) throw new Error(`${state.env.relativePath}: there is no ${target}`)
          token.attrSet('href', `${repository}/blob/main/${target}${suffix}`)
        } else {
          token.attrSet('href', file.replace(/(^|\/)README\.md$/, '$1index.md') + suffix)
        }
      }
      if (token.children) visit(token.children)
    }
  }
  visit(state.tokens)
}

// packagesOfPages finds packages that a compiled page imports. The pages are not below the
// directory in which the packages are installed.
const packagesOfPages = {
  name: 'packages-of-pages',
  enforce: 'pre',
  resolveId(id, importer, options) {
    if (id.startsWith('vue') && importer?.startsWith(docs)) {
      return this.resolve(id, path.join(site, 'package.json'), { ...options, skipSelf: true })
    }
  },
}

// searchedText returns the HTML of a page for the index of the search. The list of all pages
// would be a result of each search.
function searchedText(source, env, md) {
  return env.relativePath === 'index.md' ? '' : md.render(source, env)
}

export default defineConfig({
  title: 'numaform',
  description: 'Node autoscaler for Proxmox VE in which every change is a diff',
  lang: 'en-US',
  srcDir: docs,
  srcExclude: ['adr/**'],
  outDir: process.env.SITE_OUT,
  cacheDir: process.env.SITE_CACHE,
  rewrites: (page) => page.replace(/(^|\/)README\.md$/, '$1index.md'),
  ignoreDeadLinks: false,
  markdown: {
    anchor: { slugify },
    config: (md) => {
      md.core.ruler.after('inline', 'translate-links', translateLinks)
      // The pages are Markdown, not templates of Vue, which would evaluate braces.
      const render = md.renderer.render
      md.renderer.render = (...args) => render.apply(md.renderer, args).replaceAll('{{', '&#123;{')
    },
  },
  vite: { build: { chunkSizeWarningLimit: 4096 }, plugins: [packagesOfPages] },
  themeConfig: {
    sidebar: navigation.map(({ group, pages }) => ({
      text: group,
      collapsed: false,
      items: pages.map((page) => ({ text: heading(page), link: route(page) })),
    })),
    outline: [2, 3],
    search: { provider: 'local', options: { _render: searchedText, miniSearch: { searchOptions } } },
    socialLinks: [{ icon: 'github', link: repository }],
  },
})
